"""Augmentation of a batch in bulk, on the device of the batch.

An augmentation is a callable `(x, y, rng) -> (x, y)`: it is given what the stream gave (bytes or floats) or what the one
before it made, draws from `rng.child(NAME)`, and may turn class numbers into shares of classes.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from vitattack.registry import Registry
from vitattack.train.batches import BatchRng


class Augment(Protocol):
    def __call__(self, x: Tensor, y: Tensor, rng: BatchRng) -> tuple[Tensor, Tensor]: ...


AUGMENTS: Registry[type[Augment]] = Registry("augmentation", entry_point_group="vitattack.augmentations")
