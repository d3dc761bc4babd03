"""Columns as one block of bytes: each in the smallest type that holds it, all deflated together, written in base64."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np

from vitattack.report.overview.samples import Column

INTEGERS = ("u1", "i1", "u2", "i2", "u4", "i4")
LARGEST_HALF = 65504  # in half precision


class Packing:
    """The block while it grows; `add` returns what the page needs to find a column in it."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._places: dict[bytes, dict[str, Any]] = {}

    def add(self, column: Column) -> dict[str, Any]:
        """Append a column, unless an equal one is there."""
        small = _small(column)
        content = small.tobytes()
        key = small.dtype.str.encode() + content
        if key not in self._places:
            self._places[key] = {"at": self._size, "n": len(small), "type": small.dtype.str.lstrip("<|")}
            padding = b"\0" * (-len(content) % 4)  # typed arrays begin at multiples of their width
            self._parts += [content, padding]
            self._size += len(content) + len(padding)
        return self._places[key]

    def text(self) -> str:
        """The whole block."""
        return base64.b64encode(zlib.compress(b"".join(self._parts), 9)).decode()


def _small(column: Column) -> Column:
    """The same numbers in the smallest type; measures in half precision, which is more than a page shows."""
    if column.dtype.kind == "f":
        return column.clip(-LARGEST_HALF, LARGEST_HALF).astype("<f2")
    if column.dtype.kind == "b":
        return column.astype("u1")
    low, high = (int(column.min()), int(column.max())) if len(column) else (0, 0)
    for name in INTEGERS:
        info = np.iinfo(name)
        if info.min <= low and high <= info.max:
            return column.astype(f"<{name}")
    return column.clip(-(2**31), 2**31 - 1).astype("<i4")
