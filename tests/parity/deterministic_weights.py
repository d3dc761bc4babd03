"""Weights as a pure function of tensor name and shape, so that separate programs fill two models identically.

Needs NumPy only, since it also runs beside RobustBench in an environment of its own.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np


def uniform(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return numbers in [-1, 1) seeded by the name."""
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    values = np.random.Generator(np.random.Philox(key=key)).random(math.prod(shape), dtype=np.float32)
    return (2 * values - 1).reshape(shape)


def fill(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Values that keep activations of order one, with every kind of parameter away from its neutral value."""
    u, last = uniform(name, shape), name.rpartition(".")[2]
    if last == "running_var":
        return 1 + 0.5 * u
    if last in ("temperature", "gamma", "gamma1", "gamma2", "gamma3"):
        return 0.6 + 0.4 * u
    if last == "weight" and len(shape) == 1:  # a norm
        return 1 + 0.3 * u
    if last == "weight":
        return u * np.float32(math.sqrt(3 / math.prod(shape[1:])))
    if last in ("cls_token", "pos_embed", "relative_position_bias_table"):
        return 0.5 * u
    return 0.1 * u


def images(size: int, count: int = 2) -> np.ndarray:
    """Random images in [0, 1)."""
    return (uniform(f"images of {size}", (count, 3, size, size)) + 1) / 2
