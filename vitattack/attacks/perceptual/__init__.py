"""Perceptual distances of candidates."""
