"""Attention of any model: its layers, their scores, and views that rescale them."""
