"""Training: a recipe, one loop, and what recipes are made of.

recipe.py      the recipe as a value, and its YAML
batches.py     a batch, noise that belongs to a batch, and what a stream of batches is
objectives.py  what is minimised, and on which images
hooks.py       what a hook may do, and the hooks
loop.py        the loop
"""
