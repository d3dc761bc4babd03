"""Reader of lists of numbers in MATLAB 5 files; scipy's crashes the process on damaged files."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np

NUMBER_TYPES = {
    1: "i1",
    2: "u1",
    3: "<i2",
    4: "<u2",
    5: "<i4",
    6: "<u4",
    7: "<f4",
    9: "<f8",
    12: "<i8",
    13: "<u8",
}
MATRIX, COMPRESSED, HEADER = 14, 15, 128
LIMIT = 1_000_000  # the lists of the sets that come this way have a few thousand numbers


def read_numbers(data: bytes, name: str) -> list[int]:
    """The values of the variable `name`; ValueError where the file does not hold such a list."""
    if data[126:128] != b"IM":
        raise ValueError("no MATLAB 5 file of this byte order")
    for kind, body in _elements(data[HEADER:]):
        if kind == COMPRESSED:
            body = zlib.decompressobj().decompress(body, LIMIT)
            kind, body = next(_elements(body), (0, b""))
        if kind == MATRIX:
            parts = list(_elements(body))
            if len(parts) > 3 and parts[2][1].decode("ascii", "replace") == name and parts[3][0] in NUMBER_TYPES:
                return _whole(np.frombuffer(parts[3][1], NUMBER_TYPES[parts[3][0]]))
    raise ValueError("no such list")


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and content of each element; short ones are packed into their tag."""
    at = 0
    while at + 8 <= len(data):
        kind, size = struct.unpack_from("<II", data, at)
        if kind >> 16:
            kind, size, start, end = kind & 0xFFFF, kind >> 16, at + 4, at + 8
        else:
            start = at + 8
            end = start + size if kind == COMPRESSED else start + (size + 7) // 8 * 8
        if start + size > len(data) or start + size > end:
            raise ValueError("an element is longer than the file")
        yield kind, data[start : start + size]
        at = end


def _whole(values: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> list[int]:
    numbers = values.astype(np.float64)
    if not len(numbers) or not np.isfinite(numbers).all() or (numbers != np.round(numbers)).any():
        raise ValueError("no whole numbers")
    return [int(value) for value in numbers]
