"""Attacks: frozen values, called with a victim, images, labels and randomness; `catalogue` knows their names."""
