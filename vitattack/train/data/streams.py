"""Streams of shuffled batches: real images alone, or real and generated images mixed."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Self

import numpy as np
import torch
from torch import Tensor

from vitattack.core.errors import UsageError
from vitattack.train.data.batch import WHOLE, Batch, Shard, as_float
from vitattack.train.data.image_stores import ImageStore, InMemoryImages, Rows


@lru_cache(maxsize=4)
def _permutation(count: int, seed: int, epoch: int) -> Rows:
    return np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(count)


class ShuffledStream:
    """Images of one store, shuffled anew each epoch."""

    def __init__(self, images: ImageStore, *, num_classes: int, batch_size: int, seed: int) -> None:
        if len(images) < batch_size:
            raise UsageError(f"{len(images)} training images do not fill a batch of {batch_size}: lower batch_size")
        self.images = images
        self.num_classes, self.batch_size, self.seed = num_classes, batch_size, seed

    @classmethod
    def of_tensors(cls, x: Tensor, y: Tensor, *, num_classes: int, batch_size: int, seed: int) -> Self:
        return cls(InMemoryImages(x, y), num_classes=num_classes, batch_size=batch_size, seed=seed)

    @property
    def steps(self) -> int:
        return len(self.images) // self.batch_size

    def batch(self, epoch: int, step: int, shard: Shard = WHOLE) -> Batch:
        at = shard.positions(self.batch_size)
        first = step * self.batch_size
        order = _permutation(len(self.images), self.seed, epoch)
        return Batch(*self.images.take(order[first + at.start : first + at.stop]))

    def digest(self) -> str:
        return self.images.digest()


class MixedStream:
    """Real and generated images: int(batch_size * share) generated ones in every batch, drawn with replacement.

    Real rows come from one permutation after another without a gap, so that each is used equally often. An epoch has
    as many batches as the real images alone would fill (Gowal et al., 2021; Wang et al., ICML 2023). The two kinds are
    spread evenly over a batch, so that every process gets its share of both.
    """

    def __init__(
        self, real: ImageStore, generated: ImageStore, share: float, *, num_classes: int, batch_size: int, seed: int
    ) -> None:
        if not 0 < share < 1:
            raise UsageError(f"a share {share:g} of generated images is not between 0 and 1: 0.8 is usual")
        self.generated_per_batch = int(batch_size * share + 1e-9)  # 0.7 * 10 may be 6.999999999999999
        if not 0 < self.generated_per_batch < batch_size:
            raise UsageError(f"a share {share:g} of batches of {batch_size} leaves one kind out: raise batch_size")
        self.real, self.generated = real, generated
        self.num_classes, self.batch_size, self.seed = num_classes, batch_size, seed
        ends = np.arange(1, batch_size + 1) * self.generated_per_batch // batch_size
        self.is_generated = np.diff(ends, prepend=0) == 1

    @property
    def steps(self) -> int:
        return math.ceil(len(self.real) / self.batch_size)

    def rows(self, epoch: int, step: int) -> tuple[Rows, Rows]:
        """Real and generated rows of a whole batch."""
        number, real_per_batch = epoch * self.steps + step, self.batch_size - self.generated_per_batch
        at = np.arange(number * real_per_batch, (number + 1) * real_per_batch)
        cycles, positions = at // len(self.real), at % len(self.real)
        real = np.concatenate(
            [_permutation(len(self.real), self.seed, int(c))[positions[cycles == c]] for c in np.unique(cycles)]
        )
        generator = np.random.Generator(np.random.Philox(key=[self.seed, number], counter=[0, 0, 0, 1]))
        return real, generator.integers(0, len(self.generated), self.generated_per_batch)

    def batch(self, epoch: int, step: int, shard: Shard = WHOLE) -> Batch:
        rows = np.empty(self.batch_size, dtype=np.int64)
        rows[~self.is_generated], rows[self.is_generated] = self.rows(epoch, step)
        at = shard.positions(self.batch_size)
        shard_rows, kinds = rows[at.start : at.stop], self.is_generated[at.start : at.stop]
        pieces = [(where, store.take(shard_rows[where])) for where, store in self._by_kind(kinds)]
        shapes = {tuple(x.shape[1:]) for _, (x, _) in pieces}
        if len(shapes) > 1:
            raise UsageError(f"real and generated images differ in shape ({shapes}): use one size")
        same_dtype = len({x.dtype for _, (x, _) in pieces}) == 1
        first = pieces[0][1][0] if same_dtype else as_float(pieces[0][1][0])
        x = first.new_empty((len(shard_rows), *first.shape[1:]))
        y = torch.empty(len(shard_rows), dtype=torch.long)
        for positions, (pixels, labels) in pieces:
            where = torch.from_numpy(positions)
            x[where], y[where] = pixels if same_dtype else as_float(pixels), labels
        return Batch(x, y)

    def _by_kind(self, kinds: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> list[tuple[Rows, ImageStore]]:
        """Positions of each kind in a shard, with the store to read them from."""
        both = [(np.flatnonzero(~kinds), self.real), (np.flatnonzero(kinds), self.generated)]
        return [(where, store) for where, store in both if len(where)]

    def digest(self) -> str:
        return f"{self.real.digest()}|{self.generated.digest()}"
