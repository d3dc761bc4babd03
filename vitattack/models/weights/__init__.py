"""Weights: where they come from, how they are fetched, checked and read."""
