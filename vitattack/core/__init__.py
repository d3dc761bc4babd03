"""Errors, registries, files, progress and randomness: what every room uses and nothing of attacks."""
