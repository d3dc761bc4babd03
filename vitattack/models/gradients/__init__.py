"""Gradients that stand in for those of a model that cannot be trusted, and the parts that spoil them."""
