"""Training data in memory or mapped, real and generated, as batches by position."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from vitattack.core.errors import UsageError
from vitattack.data import load
from vitattack.data.dataset import DataSet
from vitattack.data.formats.arrays import ArraySource
from vitattack.data.formats.row_sources import Source
from vitattack.train.data.batch import WHOLE, Batch, Shard, Stream, as_float
from vitattack.train.recipe import Recipe

HELD = 4 << 30  # images whose values fill no more bytes than this are decoded once and kept
CHUNK = 1000
Rows = np.ndarray[tuple[int], np.dtype[np.int64]]


class Images(Protocol):
    """Random access to rows in bulk: (B, C, H, W), bytes or floats, and class numbers."""

    def __len__(self) -> int: ...
    def take(self, rows: Rows) -> tuple[Tensor, Tensor]: ...
    def digest(self) -> str: ...


class Held:
    """Rows in memory, as bytes where no value lies between two of 256."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        if x.is_floating_point():
            bytes_ = (x * 255).round().to(torch.uint8)
            x = bytes_ if torch.equal(as_float(bytes_), x) else x
        self.x, self.y = x, y

    @classmethod
    def read(cls, source: Source, rows: Sequence[int]) -> Held:
        pieces = [cls(*source.read(rows[at : at + CHUNK])) for at in range(0, len(rows), CHUNK)]
        same = len({piece.x.dtype for piece in pieces}) == 1
        return cls(torch.cat([p.x if same else as_float(p.x) for p in pieces]), torch.cat([p.y for p in pieces]))

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: Rows) -> tuple[Tensor, Tensor]:
        at = torch.from_numpy(rows)
        return self.x[at], self.y[at]

    def digest(self) -> str:
        hasher = hashlib.sha256(self.x.contiguous().view(torch.uint8).numpy().tobytes())
        hasher.update(self.y.numpy().tobytes())
        return hasher.hexdigest()


class Mapped:
    """Rows of numpy files that stay on the disk: a batch is copied out in bulk, part by part."""

    def __init__(self, source: ArraySource, rows: Sequence[int]) -> None:
        self._source = source
        self._rows = None if rows == tuple(range(len(source))) else np.asarray(rows, dtype=np.int64)
        self._count = len(rows)

    def __len__(self) -> int:
        return self._count

    def take(self, rows: Rows) -> tuple[Tensor, Tensor]:
        return self._source.take(rows if self._rows is None else self._rows[rows])

    def digest(self) -> str:
        """Of a thousand rows spread over the whole: terabytes are not read to start a run."""
        spread = np.unique(np.linspace(0, self._count - 1, CHUNK).astype(np.int64))
        rows = spread if self._rows is None else self._rows[spread]
        return f"{self._count}:{self._source.digest(rows.tolist())}"


class Decoded:
    """Encoded images too many to hold, decoded as they are asked for: give the loop threads for this."""

    def __init__(self, source: Source, rows: Sequence[int]) -> None:
        self._source, self._rows = source, rows

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, rows: Rows) -> tuple[Tensor, Tensor]:
        return self._source.read([self._rows[row] for row in rows.tolist()])

    def digest(self) -> str:
        spread = sorted({round(at) for at in np.linspace(0, len(self) - 1, CHUNK)})
        return f"{len(self)}:{self._source.digest([self._rows[row] for row in spread])}"


def images(data: DataSet, rows: Sequence[int]) -> Images:
    """Rows of a data set in the form that reads fastest."""
    if not rows:
        raise UsageError(f"'{data.text}' holds no images to train on: choose more rows")
    if isinstance(data.source, ArraySource):
        return Mapped(data.source, rows)
    first, _ = data.source.read(rows[:1])
    return Held.read(data.source, rows) if first.numel() * len(rows) <= HELD else Decoded(data.source, rows)


@lru_cache(maxsize=4)
def _order(count: int, seed: int, epoch: int) -> Rows:
    return np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(count)


class Shuffled:
    """One kind of images, shuffled anew each epoch."""

    def __init__(self, source: Images, *, num_classes: int, batch_size: int, seed: int) -> None:
        if len(source) < batch_size:
            raise UsageError(f"{len(source)} training images do not fill a batch of {batch_size}: lower batch_size")
        self.source = source
        self.num_classes, self.batch_size, self.seed = num_classes, batch_size, seed

    @property
    def steps(self) -> int:
        return len(self.source) // self.batch_size

    def batch(self, epoch: int, step: int, shard: Shard = WHOLE) -> Batch:
        at = shard.positions(self.batch_size)
        first = step * self.batch_size
        return Batch(*self.source.take(_order(len(self.source), self.seed, epoch)[first + at.start : first + at.stop]))

    def digest(self) -> str:
        return self.source.digest()


class InMemory(Shuffled):
    """Images and labels at hand."""

    def __init__(self, x: Tensor, y: Tensor, *, num_classes: int, batch_size: int, seed: int) -> None:
        super().__init__(Held(x, y), num_classes=num_classes, batch_size=batch_size, seed=seed)


class Mixed:
    """Real and generated images: int(batch_size * share) generated ones in every batch, drawn with replacement.

    Real rows come from one permutation after the other without a seam, so that each is used equally often. An epoch has
    as many batches as the real images alone would fill (Gowal et al., 2021; Wang et al., ICML 2023). The two kinds are
    spread evenly over a batch, so that every process gets its share of both.
    """

    def __init__(
        self, real: Images, generated: Images, share: float, *, num_classes: int, batch_size: int, seed: int
    ) -> None:
        if not 0 < share < 1:
            raise UsageError(f"a share {share:g} of generated images is not between 0 and 1: 0.8 is usual")
        self.count = int(batch_size * share + 1e-9)  # 0.7 * 10 may be 6.999999999999999
        if not 0 < self.count < batch_size:
            raise UsageError(f"a share {share:g} of batches of {batch_size} leaves one kind out: raise batch_size")
        self.real, self.generated = real, generated
        self.num_classes, self.batch_size, self.seed = num_classes, batch_size, seed
        ends = np.arange(1, batch_size + 1) * self.count // batch_size
        self.is_generated = np.diff(ends, prepend=0) == 1

    @property
    def steps(self) -> int:
        return math.ceil(len(self.real) / self.batch_size)

    def rows(self, epoch: int, step: int) -> tuple[Rows, Rows]:
        """The real and the generated rows of a whole batch."""
        number, each = epoch * self.steps + step, self.batch_size - self.count
        at = np.arange(number * each, (number + 1) * each)
        cycles, places = at // len(self.real), at % len(self.real)
        real = np.concatenate(
            [_order(len(self.real), self.seed, int(c))[places[cycles == c]] for c in np.unique(cycles)]
        )
        drawing = np.random.Generator(np.random.Philox(key=[self.seed, number], counter=[0, 0, 0, 1]))
        return real, drawing.integers(0, len(self.generated), self.count)

    def batch(self, epoch: int, step: int, shard: Shard = WHOLE) -> Batch:
        rows = np.empty(self.batch_size, dtype=np.int64)
        rows[~self.is_generated], rows[self.is_generated] = self.rows(epoch, step)
        at = shard.positions(self.batch_size)
        mine, kinds = rows[at.start : at.stop], self.is_generated[at.start : at.stop]
        taken = [(places, source.take(mine[places])) for places, source in self._by_kind(kinds)]
        shapes = {tuple(x.shape[1:]) for _, (x, _) in taken}
        if len(shapes) > 1:
            raise UsageError(f"real and generated images differ in shape ({shapes}): use one size")
        alike = len({x.dtype for _, (x, _) in taken}) == 1
        first = taken[0][1][0] if alike else as_float(taken[0][1][0])
        x = first.new_empty((len(mine), *first.shape[1:]))
        y = torch.empty(len(mine), dtype=torch.long)
        for places, (pixels, labels) in taken:
            where = torch.from_numpy(places)
            x[where], y[where] = pixels if alike else as_float(pixels), labels
        return Batch(x, y)

    def _by_kind(self, kinds: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> list[tuple[Rows, Images]]:
        found = [(np.flatnonzero(~kinds), self.real), (np.flatnonzero(kinds), self.generated)]
        return [(places, source) for places, source in found if len(places)]

    def digest(self) -> str:
        return f"{self.real.digest()}|{self.generated.digest()}"


class Data(NamedTuple):
    """What a recipe trains on, and the held-out images and labels that its probes look at."""

    train: Stream
    x: Tensor
    y: Tensor


def open_data(recipe: Recipe, data_dir: Path | None = None) -> Data:
    """The streams of a recipe. The held-out rows are drawn with the seed and never trained on."""
    found = load(recipe.data, data_dir=data_dir)
    classes = found.num_classes or recipe.arch_kwargs.get("num_classes")
    if not isinstance(classes, int):
        raise UsageError(
            f"'{recipe.data}' does not say how many classes it has: arch_kwargs='{{num_classes: 10}}' does"
        )
    found = _of_classes(found, classes)
    if recipe.validation >= len(found):
        raise UsageError(
            f"'{recipe.data}' has {len(found)} images, {recipe.validation} of them held out: lower validation"
        )
    order = np.random.Generator(np.random.Philox(key=recipe.seed)).permutation(len(found))
    held = [found.rows[at] for at in order[: recipe.validation]]
    rest = tuple(found.rows[at] for at in sorted(order[recipe.validation :]))
    x, y = Held.read(found.source, held).take(np.arange(len(held))) if held else _nothing(found)
    settings = {"num_classes": classes, "batch_size": recipe.batch_size, "seed": recipe.seed}
    real = images(found, rest)
    if (recipe.synthetic is None) != (recipe.share == 0):
        raise UsageError(
            "synthetic names generated images and share how many of a batch they are: give both or neither"
        )
    if recipe.synthetic is None:
        return Data(Shuffled(real, **settings), x, y)
    try:
        other = load(recipe.synthetic, data_dir=data_dir)
    except UsageError as error:
        raise UsageError(f"generated images: {error}; or go without them: synthetic=null share=0") from error
    if other.num_classes not in (None, classes):
        raise UsageError(
            f"'{recipe.data}' has {classes} classes, '{recipe.synthetic}' {other.num_classes}: use one kind"
        )
    rows = _without(other, found, held)
    return Data(Mixed(real, images(_of_classes(other, classes), rows), recipe.share, **settings), x, y)


def _of_classes(data: DataSet, count: int) -> DataSet:
    """Files that do not say how many classes they have are checked against what is said elsewhere."""
    if isinstance(data.source, ArraySource) and data.source.num_classes is None:
        return replace(data, source=data.source.of_classes(count))
    return data


def _without(other: DataSet, found: DataSet, held: Sequence[int]) -> tuple[int, ...]:
    """The rows of the other data but for those held out, where both are the same files."""
    alike = type(other.source) is type(found.source) and len(other.source) == len(found.source)
    if not held or not alike or other.source.digest(held[:1]) != found.source.digest(held[:1]):
        return other.rows
    gone = set(held)
    return tuple(row for row in other.rows if row not in gone)


def _nothing(data: DataSet) -> tuple[Tensor, Tensor]:
    x, y = data.read(data.rows[:1])
    return x[:0], y[:0]
