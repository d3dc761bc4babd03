"""Arrays that stay in their file, and the watch over files that are read while a run lasts."""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np

from vitattack.core.errors import UsageError, VitattackError

Array = np.ndarray[Any, np.dtype[Any]]
CHUNK = 1 << 20


class FileChanged(VitattackError):
    """A data file is no longer the one that was opened and hashed."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} has changed since it was opened: finished batches are of the old content; "
            "restore it and run the same command again, or start anew with the new one"
        )


class Unchanged(NamedTuple):
    """What must stay the same for an open file to count as unchanged."""

    size: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, file: Path | int) -> Unchanged:
        """The present state of a path or an open descriptor."""
        status = os.fstat(file) if isinstance(file, int) else file.stat()
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)


@dataclass(frozen=True)
class WatchedFile:
    """A file that is opened again and again, and must stay what it was at first."""

    path: Path
    state: Unchanged

    @classmethod
    def at(cls, path: Path) -> WatchedFile:
        return cls(path, Unchanged.of(path))

    def check(self) -> None:
        """Refuse what has just been read if the file has changed."""
        try:
            same = Unchanged.of(self.path) == self.state
        except OSError as error:
            raise UsageError(f"cannot read '{self.path}' ({error.strerror}): check the data folder") from error
        if not same:
            raise FileChanged(f"'{self.path}'")


class ArrayOnDisk:
    """An array inside a file, copied out row by row.

    A memory map would do the same, but the process dies with a bus error where its file is cut short.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], start: int, shape: tuple[int, ...]) -> None:
        self.path, self.dtype, self.shape, self._start = path, dtype, shape, start
        self._row_shape = shape[1:]
        self._row_bytes = dtype.itemsize * int(np.prod(self._row_shape, dtype=object))
        self._descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)
        self._state = Unchanged.of(self._descriptor)
        if start + len(self) * self._row_bytes > self._state.size:
            raise ValueError("the file ends inside the array")

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @overload
    def __getitem__(self, at: slice) -> ArrayOnDisk: ...
    @overload
    def __getitem__(self, at: int | Array) -> Array: ...
    def __getitem__(self, at: int | slice | Array) -> ArrayOnDisk | Array:
        """A part that stays on disk, one row, or a copy of many rows."""
        if isinstance(at, slice):
            first, last, _ = at.indices(len(self))
            shape = (max(0, last - first), *self._row_shape)
            return ArrayOnDisk(self.path, self.dtype, self._start + first * self._row_bytes, shape)
        if isinstance(at, np.ndarray):
            rows = np.empty((len(at), *self._row_shape), self.dtype)
            for place, row in enumerate(at.tolist()):
                rows[place] = self._read(row, 1)[0]
        else:
            rows = self._read(int(at), 1)[0]
        self._check()
        return rows

    def whole(self) -> Array:
        """A copy of all rows."""
        rows = self._read(0, len(self))
        self._check()
        return rows

    def extent(self) -> tuple[int, int]:
        """The least and the largest value."""
        step = max(1, CHUNK // max(1, self._row_bytes))
        pieces = [self._read(first, min(step, len(self) - first)) for first in range(0, len(self), step)]
        self._check()
        return min(int(piece.min()) for piece in pieces), max(int(piece.max()) for piece in pieces)

    def _read(self, first: int, count: int) -> Array:
        wanted = count * self._row_bytes
        data = os.pread(self._descriptor, wanted, self._start + first * self._row_bytes)
        if len(data) < wanted:
            raise FileChanged(f"'{self.path}'")
        return np.frombuffer(data, self.dtype).reshape(count, *self._row_shape)

    def _check(self) -> None:
        if Unchanged.of(self._descriptor) != self._state:
            raise FileChanged(f"'{self.path}'")


Rows = Array | ArrayOnDisk


def extent(rows: Rows) -> tuple[int, int]:
    """The least and the largest value of an array in memory or on disk."""
    return rows.extent() if isinstance(rows, ArrayOnDisk) else (int(rows.min()), int(rows.max()))
