"""Data sets as random access to rows: parquet files, class folders, npz files and tensors in memory."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from vitattack.data.images import decode_rgb, stack_pixels
from vitattack.data.transform import transform
from vitattack.errors import UsageError

IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".tif", ".tiff"}


class Source(Protocol):
    """A whole data set; rows are numbered once and for all."""

    num_classes: int | None

    def __len__(self) -> int: ...

    def read(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Images in [0,1] and labels of some rows, in that order."""

    def digest(self, rows: Sequence[int]) -> str:
        """A hash that changes when the content of these rows does."""


def file_sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _rows_of(content: str, rows: Sequence[int]) -> str:
    return hashlib.sha256(f"{content}|{','.join(map(str, rows))}".encode()).hexdigest()


class ParquetSource:
    """The layout of the hub's image data sets: a column of {bytes, path} and one of labels; row groups read on demand."""

    def __init__(self, paths: Sequence[Path], image: str, label: str, num_classes: int) -> None:
        self.num_classes: int | None = num_classes
        self._columns = [image, label]
        self._paths = list(paths)
        self._groups: list[tuple[int, int, int]] = []  # (first row, file, group)
        total = 0
        for number, path in enumerate(self._paths):
            try:
                meta = pq.ParquetFile(path).metadata
                missing = {image, label} - {name.split(".")[0] for name in meta.schema.to_arrow_schema().names}
            except (pa.ArrowException, OSError) as error:
                raise UsageError(f"{path} is not a readable parquet file ({error}): fetch it again") from error
            if missing:
                raise UsageError(f"{path} has no column {' or '.join(sorted(missing))}: is it another data set?")
            for group in range(meta.num_row_groups):
                self._groups.append((total, number, group))
                total += meta.row_group(group).num_rows
        self._total = total
        self._open: tuple[int, pa.Table] | None = None

    def __len__(self) -> int:
        return self._total

    def read(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        images, labels = [], []
        for row in rows:
            table, first = self._group_of(row)
            if table[1][row - first].as_py() is None or table[0][row - first].as_py() is None:
                raise UsageError(f"row {row} of {self._paths[0].name} has no image or no label: repair the file")
            cell = table[0][row - first].as_py()
            data = cell["bytes"] if isinstance(cell, dict) else cell
            images.append(decode_rgb(data, f"row {row} of {self._paths[0].name}"))
            labels.append(table[1][row - first].as_py())
        return stack_pixels(images), torch.tensor(labels)

    def _group_of(self, row: int) -> tuple[pa.Table, int]:
        group = max(i for i, (first, _, _) in enumerate(self._groups) if first <= row)
        first, file, number = self._groups[group]
        if self._open is None or self._open[0] != group:
            self._open = (group, pq.ParquetFile(self._paths[file]).read_row_group(number, columns=self._columns))
            self._open = (group, self._open[1].select(self._columns))
        return self._open[1], first

    @cached_property
    def _content(self) -> str:
        return "|".join(file_sha256(path) for path in self._paths)

    def digest(self, rows: Sequence[int]) -> str:
        return _rows_of(self._content, rows)


def _images_in(folder: Path) -> list[Path]:
    """Image files below a class folder; hidden ones (thumbnails, checkpoints of notebooks) are none."""
    if folder.name.startswith((".", "__")):
        return []
    return sorted(p for p in folder.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())


class FolderSource:
    """One sub-folder per class. Synset folders get their ImageNet-1k labels whatever the listing order says."""

    def __init__(self, root: Path, transform_text: str = "none") -> None:
        if not root.is_dir():
            raise UsageError(f"folder '{root}' does not exist: give the folder that holds one sub-folder per class")
        names = sorted(p.name for p in root.iterdir() if p.is_dir() and _images_in(p))
        if not names:
            flat = any(p.suffix.lower() in IMAGE_SUFFIXES for p in root.iterdir())
            what = "holds images but no class folders" if flat else "holds no class folder with images"
            raise UsageError(f"folder '{root}' {what}: sort the images into one sub-folder per class")
        labels, self.num_classes = self._label(names)
        self._root = root
        self._items: list[tuple[Path, int]] = [
            (path, labels[name]) for name in names for path in _images_in(root / name)
        ]
        self._transform = transform(transform_text)

    @staticmethod
    def _label(names: list[str]) -> tuple[dict[str, int], int | None]:
        if all(re.fullmatch(r"n\d{8}", name) for name in names):
            known = (files("timm.data") / "_info" / "imagenet_synsets.txt").read_text().split()
            order = {synset: number for number, synset in enumerate(known)}
            strange = [name for name in names if name not in order]
            if strange:
                raise UsageError(
                    f"folder '{strange[0]}' is no ImageNet-1k synset: remove it or rename the class folders"
                )
            return {name: order[name] for name in names}, len(known)
        if all(name.isdecimal() for name in names):
            return {name: int(name) for name in names}, None  # some classes of a set whose size nobody says
        return {name: number for number, name in enumerate(names)}, len(names)

    def __len__(self) -> int:
        return len(self._items)

    def read(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        chosen = [self._items[row] for row in rows]
        images = [decode_rgb(path.read_bytes(), str(path), self._transform) for path, _ in chosen]
        return stack_pixels(images), torch.tensor([label for _, label in chosen])

    def digest(self, rows: Sequence[int]) -> str:
        hasher = hashlib.sha256()
        for path, label in (self._items[row] for row in rows):
            hasher.update(f"{path.relative_to(self._root)}|{label}|{file_sha256(path)}\n".encode())
        return hasher.hexdigest()


class TensorSource:
    """Images and labels in memory."""

    def __init__(self, x: Tensor, y: Tensor, num_classes: int | None = None) -> None:
        if x.dim() != 4 or not x.is_floating_point():
            raise UsageError(f"images are {x.dtype} of shape {tuple(x.shape)}: give floats in [0,1] of (N, C, H, W)")
        if y.shape != (len(x),):
            raise UsageError(f"{len(x)} images but labels of shape {tuple(y.shape)}: give one label per image")
        if len(x) == 0:
            raise UsageError("there are no images: give at least one")
        if y.is_floating_point() or y.dtype == torch.bool:
            raise UsageError(f"labels are {y.dtype}: give class numbers as integers")
        self.num_classes = num_classes
        self._x, self._y = x.detach().float(), y.detach().long()

    def __len__(self) -> int:
        return len(self._x)

    def read(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        chosen = torch.as_tensor(rows, device=self._x.device)
        return self._x[chosen], self._y[chosen.to(self._y.device)]

    def digest(self, rows: Sequence[int]) -> str:
        x, y = self.read(rows)
        hasher = hashlib.sha256(f"{tuple(x.shape)}".encode())
        for part in (x, y):
            hasher.update(part.cpu().contiguous().numpy().tobytes())
        return hasher.hexdigest()


def npz_source(path: Path) -> TensorSource:
    """An npz with `image`/`images`/`x` (uint8 NHWC or float NCHW in [0,1]) and `label`/`labels`/`y`."""
    if not path.is_file():
        raise UsageError(f"file '{path}' does not exist: check the path after npz:")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: np.ascontiguousarray(archive[name]) for name in archive.files}
    except Exception as error:  # numpy, zipfile and zlib each have their own ways to fail on a broken file
        raise UsageError(
            f"'{path}' is not a plain npz file ({type(error).__name__}): save arrays with numpy.savez"
        ) from error
    x = next((arrays[name] for name in ("image", "images", "x") if name in arrays), None)
    y = next((arrays[name] for name in ("label", "labels", "y") if name in arrays), None)
    if x is None or y is None:
        raise UsageError(f"'{path}' holds {', '.join(arrays) or 'nothing'}: it needs arrays named image and label")
    if x.ndim == 4 and x.shape[-1] == 3 and x.shape[1] != 3:
        x = x.transpose(0, 3, 1, 2)
    if x.dtype not in (np.uint8, np.float32, np.float64) or y.dtype.kind not in "iu":
        raise UsageError(
            f"'{path}' has {x.dtype} images and {y.dtype} labels: use uint8 or float images, integer labels"
        )
    pixels = torch.from_numpy(np.ascontiguousarray(x))
    pixels = pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels
    return TensorSource(pixels, torch.from_numpy(y.astype(np.int64)))
