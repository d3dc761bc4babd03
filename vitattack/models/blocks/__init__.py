"""Blocks of a model, found by watching a forward: their residual branches, their tokens, and views without some of them."""
