"""Contract of augmentations, and their application to a batch in the order of the recipe.

Augmentations work on whole batches, on the device of the batch. One receives bytes or floats as the stream or its
predecessor left them, draws from `rng.child(NAME)`, and may turn class numbers into class probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from vitattack.core.errors import UsageError
from vitattack.train.data.batch import Batch, BatchRng, as_float

MAX_PIXELS = 4096  # a side, or a padding


class Augmentation(Protocol):
    def __call__(self, x: Tensor, y: Tensor, rng: BatchRng) -> tuple[Tensor, Tensor]: ...


def augmented(batch: Batch, augmentations: Sequence[Augmentation], rng: BatchRng) -> Batch:
    """The batch the model is trained on: augmented, floats in [0,1]."""
    x, y = batch
    for count, augment in enumerate(augmentations):
        x, y = augment(x, y, rng.child("augment", count))
    return Batch(as_float(x), y)


def uniform_draws(rng: BatchRng, x: Tensor, count: int) -> Tensor:
    """(B, count) uniform values in double precision, on the device of x."""
    return rng.uniform(torch.empty(len(x), count, dtype=torch.float64)).to(x.device)


def check_share(share: float, name: str) -> None:
    if not 0 <= share <= 1:
        raise UsageError(f"{name}({share:g}) is a share of the images: use a number from 0 to 1")


def check_range(pair: tuple[float, ...], label: str) -> None:
    if len(pair) != 2 or not 0 < pair[0] <= pair[1]:
        raise UsageError(f"{label} takes two positive numbers in order, such as (0.08, 1), not {pair}")
