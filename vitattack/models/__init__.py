"""Victims and views: models as attacks see them, from name and weights to logits and attention."""
