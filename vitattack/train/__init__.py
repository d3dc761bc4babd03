"""Training: `recipe.py` and its parts, `loop.py` and what surrounds it (`run.py`, `keeper.py`); see docs/design.md."""
