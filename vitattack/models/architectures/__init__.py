"""Architectures that can be built by name."""
