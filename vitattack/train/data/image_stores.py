"""Random access to training images in bulk: in memory, mapped from numpy files, or decoded on demand."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from vitattack.core.errors import UsageError
from vitattack.data.dataset import DataSet
from vitattack.data.entry import Source
from vitattack.data.formats.arrays import ArraySource
from vitattack.train.data.batch import as_float

MAX_VALUES_IN_MEMORY = 4 << 30  # larger sets of encoded images are decoded again at every use
CHUNK = 1000
Rows = np.ndarray[tuple[int], np.dtype[np.int64]]


class ImageStore(Protocol):
    def __len__(self) -> int: ...

    def take(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Images (B, C, H, W) as bytes or floats, and class numbers."""

    def digest(self) -> str: ...


class InMemoryImages:
    """Images in memory, as bytes if that loses nothing."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        if x.is_floating_point():
            bytes_ = (x * 255).round().to(torch.uint8)
            x = bytes_ if torch.equal(as_float(bytes_), x) else x
        self.x, self.y = x, y

    @classmethod
    def read(cls, source: Source, rows: Sequence[int]) -> InMemoryImages:
        pieces = [cls(*source.read(rows[at : at + CHUNK])) for at in range(0, len(rows), CHUNK)]
        same_dtype = len({piece.x.dtype for piece in pieces}) == 1
        x = torch.cat([piece.x if same_dtype else as_float(piece.x) for piece in pieces])
        return cls(x, torch.cat([piece.y for piece in pieces]))

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: Rows) -> tuple[Tensor, Tensor]:
        at = torch.from_numpy(rows)
        return self.x[at], self.y[at]

    def digest(self) -> str:
        hasher = hashlib.sha256(self.x.contiguous().view(torch.uint8).numpy().tobytes())
        hasher.update(self.y.numpy().tobytes())
        return hasher.hexdigest()


class MappedImages:
    """Rows of numpy files that stay on disk; a batch is copied out in bulk, file by file."""

    def __init__(self, source: ArraySource, rows: Sequence[int]) -> None:
        self._source = source
        self._rows = None if rows == tuple(range(len(source))) else np.asarray(rows, dtype=np.int64)
        self._count = len(rows)

    def __len__(self) -> int:
        return self._count

    def take(self, rows: Rows) -> tuple[Tensor, Tensor]:
        return self._source.take(rows if self._rows is None else self._rows[rows])

    def digest(self) -> str:
        """Digest of a thousand evenly spread rows: a run must not read terabytes to start."""
        spread = np.unique(np.linspace(0, self._count - 1, CHUNK).astype(np.int64))
        rows = spread if self._rows is None else self._rows[spread]
        return f"{self._count}:{self._source.digest(rows.tolist())}"


class DecodedImages:
    """Encoded images that do not fit in memory, decoded on demand; best with several loader threads."""

    def __init__(self, source: Source, rows: Sequence[int]) -> None:
        self._source, self._rows = source, rows

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, rows: Rows) -> tuple[Tensor, Tensor]:
        return self._source.read([self._rows[row] for row in rows.tolist()])

    def digest(self) -> str:
        spread = sorted({round(at) for at in np.linspace(0, len(self) - 1, CHUNK)})
        return f"{len(self)}:{self._source.digest([self._rows[row] for row in spread])}"


def store_images(data: DataSet, rows: Sequence[int]) -> ImageStore:
    """Rows of a data set in the store that reads them fastest."""
    if not rows:
        raise UsageError(f"'{data.text}' holds no images to train on: choose more rows")
    if isinstance(data.source, ArraySource):
        return MappedImages(data.source, rows)
    first, _ = data.source.read(rows[:1])
    if first.numel() * len(rows) <= MAX_VALUES_IN_MEMORY:
        return InMemoryImages.read(data.source, rows)
    return DecodedImages(data.source, rows)
