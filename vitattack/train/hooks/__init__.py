"""Hooks that a recipe adds to the training loop."""
