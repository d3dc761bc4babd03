"""Attacks that use no gradient of the victim: noise, Square, and transfer from source models."""
