"""How far a model's gradient can be trusted, and gradients that stand in for one that cannot."""
