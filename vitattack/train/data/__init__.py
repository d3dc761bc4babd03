"""Training data: images in memory or on disk, and the batch at every position of a run."""
