"""Images in numpy files, read row by row: nothing is loaded whole, parts are never joined."""

from __future__ import annotations

import hashlib
import re
import shutil
import struct
import zipfile
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from vitattack.core import files
from vitattack.core.errors import UsageError, VitattackError
from vitattack.core.locks import cache_lock
from vitattack.data.formats.array_on_disk import Array, ArrayOnDisk, Rows, extent
from vitattack.data.formats.decoding import check_label

IN_MEMORY = 1 << 29  # compressed members up to this size are unpacked in memory, larger ones once into a file
Pair = tuple[Rows, Rows]


class ArraySource:
    """Parts of (images, labels) in a row: uint8 as (N, H, W, 3) or floats in [0,1] as (N, 3, H, W)."""

    def __init__(self, parts: Sequence[Pair], num_classes: int | None, names: Sequence[str]) -> None:
        for (x, y), name in zip(parts, names, strict=True):
            _check(x, y, name)
            least, most = extent(y) if len(y) else (0, 0)
            if num_classes is not None and not 0 <= least <= most < num_classes:
                raise UsageError(f"'{name}' has labels from {least} to {most}, the set has {num_classes} classes")
            check_label(most, f"'{name}'")
        self.num_classes = num_classes
        self._names = list(names)
        self._parts = list(parts)
        self._ends = list(accumulate(len(x) for x, _ in parts))

    def __len__(self) -> int:
        return self._ends[-1]

    @property
    def files(self) -> tuple[Path, ...]:
        """Everything the rows are read from."""
        return tuple(map(Path, self._names))

    def labels(self, rows: Sequence[int]) -> Sequence[int]:
        """The classes of some rows, without the images."""
        every = [label for _, y in self._parts for label in (y.whole() if isinstance(y, ArrayOnDisk) else y).tolist()]
        return [every[row] for row in rows]

    def of_classes(self, count: int) -> ArraySource:
        """The same images with a number of classes their files do not say; labels beyond it are refused."""
        return ArraySource(self._parts, count, self._names)

    def _row(self, row: int) -> tuple[Array, Any]:
        part = bisect_right(self._ends, row)
        x, y = self._parts[part]
        at = row - (self._ends[part - 1] if part else 0)
        return x[at], y[at]

    def read(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        found = [self._row(row) for row in rows]
        return torch.stack([_pixels(x) for x, _ in found]), torch.tensor([int(y) for _, y in found])

    def take(self, rows: Array) -> tuple[Tensor, Tensor]:
        """Many rows at once, part by part: (B, C, H, W) as the file has them, uint8 or floats, and labels."""
        parts = np.searchsorted(self._ends, rows, side="right")
        images: Tensor | None = None
        labels = torch.empty(len(rows), dtype=torch.long)
        for part in np.unique(parts):
            x, y = self._parts[part]
            where = np.flatnonzero(parts == part)
            where = where[np.argsort(rows[where], kind="stable")]  # a disk likes to go forwards
            at = rows[where] - (self._ends[part - 1] if part else 0)
            pixels = torch.from_numpy(np.ascontiguousarray(x[at]))
            if x.shape[-1] == 3 and x.shape[1] != 3:
                pixels = pixels.permute(0, 3, 1, 2)
            pixels = pixels if pixels.dtype == torch.uint8 else pixels.float()
            if images is None:
                images = torch.empty((len(rows), *pixels.shape[1:]), dtype=pixels.dtype)
            elif images.shape[1:] != pixels.shape[1:] or images.dtype != pixels.dtype:
                raise UsageError(
                    f"the parts hold {images.dtype} and {pixels.dtype} images of other shapes: use equal ones"
                )
            images[where] = pixels
            labels[where] = torch.from_numpy(y[at].astype(np.int64))
        if images is None:
            raise UsageError("no rows were asked for: take at least one")
        return images, labels

    def digest(self, rows: Sequence[int]) -> str:
        hasher = hashlib.sha256()
        for x, y in map(self._row, rows):
            hasher.update(f"{x.dtype.str}{x.shape}{int(y)}|".encode())
            hasher.update(np.ascontiguousarray(x).tobytes())
        return hasher.hexdigest()


def _check(x: Rows, y: Rows, name: str) -> None:
    if x.dtype not in (np.uint8, np.float32, np.float64) or y.dtype.kind not in "iu":
        raise UsageError(
            f"'{name}' has {x.dtype} images and {y.dtype} labels: use uint8 or float images, integer labels"
        )
    if x.ndim != 4 or 0 in x.shape[1:]:
        raise UsageError(f"'{name}' has images of shape {x.shape}: use (N, H, W, 3) or (N, C, H, W)")
    if y.shape != (len(x),):
        raise UsageError(f"'{name}' has {len(x)} images and labels of shape {y.shape}: give one label per image")


def _pixels(x: Array) -> Tensor:
    if x.shape[-1] == 3 and x.shape[0] != 3:
        x = x.transpose(2, 0, 1)
    pixels = torch.from_numpy(np.array(x))
    return pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels.float()


def npz_source(path: Path, num_classes: int | None = None) -> ArraySource:
    """An npz with `image` and `label`, or a folder of such parts, which follow each other in the order of their numbers."""
    if path.is_dir():
        parts = sorted(path.glob("*.npz"), key=lambda part: [_number(word) for word in re.split(r"(\d+)", part.name)])
        if not parts:
            raise UsageError(f"folder '{path}' holds no npz file: give a file, or the folder of its parts")
        return npz_parts(parts, num_classes)
    if not path.is_file():
        raise UsageError(f"file '{path}' does not exist: check the path after npz:")
    return npz_parts([path], num_classes)


def _number(word: str) -> tuple[int, str]:
    return (int(word), "") if word.isdecimal() else (0, word)


def npz_parts(paths: Sequence[Path], num_classes: int | None) -> ArraySource:
    return ArraySource([_open(path) for path in paths], num_classes, [str(path) for path in paths])


def _open(path: Path) -> Pair:
    x, y = named_arrays(path, [("image", "images", "x"), ("label", "labels", "y")], ("image", "label"))
    if x is None or y is None:
        raise AssertionError("arrays that must be there were not refused")
    return x, y


def named_arrays(path: Path, names: Sequence[Sequence[str]], needed: Sequence[str] = ()) -> list[Rows | None]:
    """The arrays of an npz that go by one of several names, None for those it lacks; all or none are `needed`."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            found = [next((members[name] for name in each if name in members), None) for each in names]
            if needed and None in found:
                held = ascii(", ".join(members))[1:-1][:60] or "nothing"
                raise UsageError(f"'{path}' holds {held}: it needs arrays named {' and '.join(needed)}")
            return [None if info is None else _member(path, archive, info) for info in found]
    except VitattackError:
        raise
    except Exception as error:  # numpy, zipfile and zlib each have their own ways to fail on a broken file
        raise UsageError(
            f"'{path}' is not a plain npz file ({type(error).__name__}): save arrays with numpy.savez"
        ) from error


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Rows:
    with archive.open(info) as stream:
        dtype, shape, at = _header(stream)
        wanted = at + dtype.itemsize * int(np.prod(shape, dtype=object))
        if wanted != info.file_size:
            raise ValueError("the header and the size of the array differ")
        if info.compress_type == zipfile.ZIP_STORED:
            with path.open("rb") as raw:
                raw.seek(info.header_offset + 26)
                names = struct.unpack("<HH", raw.read(4))
            start = info.header_offset + 30 + sum(names) + at
            return ArrayOnDisk(path, dtype, start, shape)
        if wanted <= IN_MEMORY:
            data = stream.read(wanted - at)
            return np.frombuffer(data, dtype).reshape(shape)
        return ArrayOnDisk(_unpacked(path, info, stream, wanted - at), dtype, 0, shape)


def _header(stream: IO[bytes]) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Type, shape and length of the header of an npy stream; anything that would need pickle is refused."""
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    if dtype.hasobject or fortran:
        raise ValueError("objects or columns first")
    return dtype, shape, stream.tell()


def _unpacked(path: Path, info: zipfile.ZipInfo, stream: IO[bytes], size: int) -> Path:
    """The raw array of a compressed member, unpacked once into the cache folder."""
    status = path.stat()
    mark = f"{path.resolve()}|{status.st_size}|{status.st_mtime_ns}|{info.filename}|{info.CRC}"
    target = files.cache_folder("arrays") / f"{hashlib.sha256(mark.encode()).hexdigest()[:24]}.raw"
    with cache_lock(target.name):
        if target.is_file() and target.stat().st_size == size:
            return target
        if shutil.disk_usage(target.parent).free < size:
            raise UsageError(
                f"'{path}' unpacks to {size:,} bytes, more than '{target.parent}' has room for: make room there"
            )
        with files.replacing(target) as beside:
            with beside.open("wb") as out:
                shutil.copyfileobj(stream, out, 1 << 22)
            if beside.stat().st_size != size:
                raise ValueError("the array is not as long as its header says")
    return target


def npy(path: Path) -> ArrayOnDisk:
    """A plain npy file, left on the disk."""
    try:
        with path.open("rb") as stream:
            dtype, shape, start = _header(stream)
        return ArrayOnDisk(path, dtype, start, shape)
    except FileNotFoundError as error:
        raise UsageError(f"file '{path}' does not exist: the official archive has it, unpack it whole") from error
    except Exception as error:  # numpy reports a broken file by whatever breaks first
        raise UsageError(f"'{path}' is not a plain npy file ({type(error).__name__}): fetch it again") from error


def corrupted_cifar(
    folder: Path, corruption: str, severity: int | None, num_classes: int, each: int = 10_000
) -> ArraySource:
    """One file of CIFAR-10-C or -100-C: five severities of all test images, one after the other."""
    x, y = npy(folder / f"{corruption}.npy"), npy(folder / "labels.npy")
    shape = (5 * each, 32, 32, 3)
    if x.dtype != np.uint8 or x.shape != shape or y.shape != shape[:1] or y.dtype.kind not in "iu":
        raise UsageError(
            f"'{folder}' has {x.dtype} images {x.shape} and labels {y.shape} for {corruption}, not {shape}: fetch it again"
        )
    part = slice(0, None) if severity is None else slice((severity - 1) * each, severity * each)
    return ArraySource([(x[part], y[part])], num_classes, [f"{folder}/{corruption}.npy"])
