"""Attacks that minimise the norm of the perturbation."""
