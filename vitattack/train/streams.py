"""Training data in memory or mapped, real and synthetic, as batches by position."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitattack.data import load
from vitattack.errors import UsageError
from vitattack.train.batches import WHOLE, Batch, Shard, Stream
from vitattack.train.recipe import Recipe


class InMemory:
    """Rows in memory, shuffled anew each epoch."""

    def __init__(self, x: Tensor, y: Tensor, *, num_classes: int, batch_size: int, seed: int) -> None:
        if len(x) < batch_size:
            raise UsageError(f"{len(x)} training images do not fill a batch of {batch_size}: lower batch_size")
        self.x, self.y = x, y
        self.num_classes, self.batch_size, self.seed = num_classes, batch_size, seed

    @property
    def steps(self) -> int:
        return len(self.x) // self.batch_size

    def order(self, epoch: int) -> np.ndarray:
        """The rows of an epoch in the order they are used."""
        return np.random.Generator(np.random.Philox(key=[self.seed, epoch])).permutation(len(self.x))

    def batch(self, epoch: int, step: int, shard: Shard = WHOLE) -> Batch:
        at = shard.positions(self.batch_size)
        first = step * self.batch_size
        rows = torch.from_numpy(self.order(epoch)[first + at.start : first + at.stop])
        return Batch(self.x[rows], self.y[rows])

    def digest(self) -> str:
        hasher = hashlib.sha256(self.x.contiguous().view(torch.uint8).numpy().tobytes())
        hasher.update(self.y.numpy().tobytes())
        return hasher.hexdigest()


class Data(NamedTuple):
    """What a recipe trains on, and the held-out images and labels that its probes look at."""

    train: Stream
    x: Tensor
    y: Tensor


def open_data(recipe: Recipe, data_dir: Path | None = None) -> Data:
    """The streams of a recipe. The held-out rows are drawn with the seed and never trained on."""
    found = load(recipe.data, data_dir=data_dir)
    if found.num_classes is None:
        raise UsageError(f"'{recipe.data}' does not say how many classes it has: name a data set that does")
    if recipe.validation >= len(found):
        raise UsageError(
            f"'{recipe.data}' has {len(found)} images, {recipe.validation} of them held out: lower validation"
        )
    pieces = [found.read(rows) for rows in found.cut(1000)]
    x = torch.cat([(x * 255).round().to(torch.uint8) for x, _ in pieces])
    y = torch.cat([y for _, y in pieces])
    order = torch.from_numpy(np.random.Generator(np.random.Philox(key=recipe.seed)).permutation(len(x)))
    held, rest = order[: recipe.validation], order[recipe.validation :]
    stream = InMemory(x[rest], y[rest], num_classes=found.num_classes, batch_size=recipe.batch_size, seed=recipe.seed)
    return Data(stream, x[held], y[held])
