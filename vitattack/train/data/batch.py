"""Batches, their shards among processes, and their random numbers: all functions of seed, epoch and step."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng


class Shard(NamedTuple):
    """Part `rank` of `world` equal parts of every batch: the work of one of several processes."""

    rank: int = 0
    world: int = 1

    def positions(self, size: int) -> range:
        """Positions of this shard in a batch of `size`: contiguous, so that the shards in order are the batch."""
        each = size // self.world
        return range(self.rank * each, (self.rank + 1) * each)


WHOLE = Shard()


@dataclass(frozen=True)
class BatchRng(SampleRng):
    """Random numbers of a whole batch, drawn at once: row i depends on (seed, path) and its position in the batch.

    A `SampleRng` without a generator per sample, which would be too slow for training. `index` holds positions in the
    whole batch, `total` its size: a process with one shard draws the same rows as a process with the whole batch.
    """

    total: int = 0

    def scalar(self) -> float:
        """One uniform value shared by all rows and all processes."""
        return float(self._bulk().random())

    def _fill(self, like: Tensor, draw: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]) -> Tensor:
        if len(like) != len(self.index):
            raise ValueError(f"{len(self.index)} random rows for a batch of {len(like)}")
        values = torch.from_numpy(draw(self._bulk(), (self.total, *like.shape[1:])))
        return values[list(self.index)].to(like.dtype).to(like.device)

    def _bulk(self) -> np.random.Generator:
        key = hashlib.blake2b(f"{self.seed}|{self.path}".encode(), digest_size=16).digest()
        return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))


def batch_rng(seed: int, epoch: int, step: int, size: int, shard: Shard = WHOLE) -> BatchRng:
    """Random numbers of one batch; each use opens its own stream with `child`."""
    return BatchRng(seed, tuple(shard.positions(size)), f"epoch.{epoch}/step.{step}", size)


class Batch(NamedTuple):
    """Rows of one step: x uint8 or float in [0,1], (B, C, H, W); y class numbers (B,) or probabilities (B, K)."""

    x: Tensor
    y: Tensor


class Stream(Protocol):
    """Batches by position: the same rows for the same position, at any time and in any process."""

    num_classes: int
    batch_size: int

    @property
    def steps(self) -> int:
        """Batches per epoch; rows that do not fill a batch are left out."""

    def batch(self, epoch: int, step: int, shard: Shard = WHOLE) -> Batch:
        """One shard of batch `step` of an epoch, on the CPU; must be thread-safe."""

    def digest(self) -> str:
        """A digest that changes with the data, since a resumed run refuses other data."""


def as_float(x: Tensor) -> Tensor:
    """Convert bytes to pixels in [0,1]; floats pass through."""
    return x.float() / 255 if x.dtype == torch.uint8 else x


def centre_crop(x: Tensor, px: int) -> Tensor:
    """The central px by px of images larger than the model's input, where augmentation crops the others."""
    height, width = x.shape[-2:]
    if min(height, width) < px:
        raise UsageError(f"images of {height} x {width} px are smaller than the {px} px of the model: enlarge the data")
    top, left = (height - px) // 2, (width - px) // 2
    return x[..., top : top + px, left : left + px]


def prefetched(stream: Stream, epoch: int, first: int, shard: Shard, workers: int) -> Iterator[Batch]:
    """Batches of an epoch from step `first` on, prepared ahead of time by `workers` threads."""
    steps = range(first, stream.steps)
    if workers == 0:
        for step in steps:
            yield stream.batch(epoch, step, shard)
        return
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[Batch]] = deque()
        for step in steps:
            waiting.append(pool.submit(stream.batch, epoch, step, shard))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
