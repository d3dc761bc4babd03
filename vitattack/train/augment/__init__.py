"""Augmentations that a recipe can name, each applied to a whole batch."""
