"""CLIP models as zero-shot classifiers: an image tower, and a linear head made of texts."""
