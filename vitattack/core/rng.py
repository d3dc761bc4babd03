"""Randomness that depends on the sample alone, never on the batch it happens to sit in."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class SampleRng:
    """One key per row: a draw depends only on (seed, path, sample index), so equal calls give equal values.

    `child` opens a new independent stream; ask for one per draw, as with split keys in JAX.
    Philox counters are drawn on the CPU, so every device sees the same noise.
    """

    seed: int
    index: tuple[int, ...]
    path: str = ""

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, rows: Tensor) -> Self:
        """The streams of some rows, by a boolean mask or by positions."""
        positions = rows.nonzero().flatten() if rows.dtype == torch.bool else rows
        return replace(self, index=tuple(self.index[i] for i in positions.tolist()))

    def copies(self, times: int) -> Self:
        """Streams for copies of every row that stand one after another, each with values of its own."""
        index = tuple(i * times + copy for i in self.index for copy in range(times))
        return replace(self, index=index, path=f"{self.path}/copies.{times}")

    def child(self, name: str, restart: int = 0) -> Self:
        return replace(self, path=f"{self.path}/{name}.{restart}")

    def uniform(self, like: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Uniform values in the shape of `like`, whose rows are this object's samples."""
        return self._fill(like, lambda g, shape: g.random(shape) * (high - low) + low)

    def normal(self, like: Tensor) -> Tensor:
        return self._fill(like, lambda g, shape: g.standard_normal(shape))

    def _fill(self, like: Tensor, draw: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]) -> Tensor:
        if len(like) != len(self.index):
            raise ValueError(f"{len(self.index)} random streams for a batch of {len(like)}")
        rows = [torch.from_numpy(draw(self.generator(i), tuple(like.shape[1:]))) for i in self.index]
        return torch.stack(rows).to(like.dtype).to(like.device) if rows else torch.empty_like(like)

    def generator(self, index: int) -> np.random.Generator:
        """The generator of one sample."""
        key = hashlib.blake2b(f"{self.seed}|{self.path}|{index}".encode(), digest_size=16).digest()
        return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))


def seed_of(rng: SampleRng) -> int:
    """Seed for a batch, which depends on its rows, since code that knows no `SampleRng` draws for all rows at once."""
    key = hashlib.blake2b(f"{rng.seed}|{rng.path}|{rng.index}".encode(), digest_size=4).digest()
    return int.from_bytes(key, "little")


@contextmanager
def seeded(rng: SampleRng) -> Iterator[int]:
    """Seed the global generators of torch, numpy and Python from `rng`, and restore them afterwards."""
    seed = seed_of(rng)
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    try:
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        yield seed
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
        if mps is not None:
            torch.mps.set_rng_state(mps)
