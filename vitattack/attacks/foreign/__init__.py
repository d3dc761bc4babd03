"""Attacks of other packages, run in a sandbox."""
