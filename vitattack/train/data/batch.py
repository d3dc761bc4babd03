"""How training data arrives: batch number `step` of an epoch is a function of the seed, so a position is two numbers."""

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
    """Part `rank` of `world` equal parts of every batch: what one of several processes works on."""

    rank: int = 0
    world: int = 1

    def positions(self, size: int) -> range:
        """The places of this part in a batch of `size`: a contiguous run, so that parts in order are the batch."""
        each = size // self.world
        return range(self.rank * each, (self.rank + 1) * each)


WHOLE = Shard()


@dataclass(frozen=True)
class BatchRng(SampleRng):
    """Noise of a batch, drawn in one go for all of it: row i depends on (seed, path) and its place in the batch.

    The same interface as `SampleRng`, whose generator per sample is too slow for training. `index` holds places in the
    whole batch, `total` its size: a process that works on a part of the batch gets the rows it would get alone.
    """

    total: int = 0

    def scalar(self) -> float:
        """One uniform value that all rows and all processes share."""
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
    """The noise of one batch; `child` opens a stream for each use of it."""
    return BatchRng(seed, tuple(shard.positions(size)), f"epoch.{epoch}/step.{step}", size)


class Batch(NamedTuple):
    """Rows of one step: x uint8 or float in [0,1], (B, C, H, W); y class numbers (B,), or shares of classes (B, K)."""

    x: Tensor
    y: Tensor


class Stream(Protocol):
    """Batches by position. Asked twice, or by another process, for the same position it gives the same rows."""

    num_classes: int
    batch_size: int

    @property
    def steps(self) -> int:
        """Batches per epoch; the rest that would not fill one is left out."""

    def batch(self, epoch: int, step: int, shard: Shard = WHOLE) -> Batch:
        """This part of batch `step` of an epoch, on the CPU. Called from several threads at once."""

    def digest(self) -> str:
        """Changes when the data do: a resumed run refuses other data."""


def as_float(x: Tensor) -> Tensor:
    """Pixels in [0,1]; bytes are divided by 255."""
    return x.float() / 255 if x.dtype == torch.uint8 else x


def middle(x: Tensor, px: int) -> Tensor:
    """The middle px by px of images that only augmentation cuts to the size of the model."""
    height, width = x.shape[-2:]
    if min(height, width) < px:
        raise UsageError(f"images of {height} x {width} px are smaller than the {px} px of the model: enlarge the data")
    top, left = (height - px) // 2, (width - px) // 2
    return x[..., top : top + px, left : left + px]


def batches(stream: Stream, epoch: int, first: int, shard: Shard, workers: int) -> Iterator[Batch]:
    """The batches of an epoch from step `first` on, made ahead of time by `workers` threads."""
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
