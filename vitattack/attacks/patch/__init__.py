"""Attacks inside one square of the image."""
