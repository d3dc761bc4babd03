"""Adaptive Attention Scaling: attacks through views with scaled attention, and their referee."""
