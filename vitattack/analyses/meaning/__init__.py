"""Meaning of perturbations: images of them, and images made of noise, before other models."""
