"""Shifts and rotations of the whole image."""
