"""Adversarial training: a recipe in, a folder of weights out, resumable and repeatable to the bit."""
