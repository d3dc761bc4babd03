"""Sources of rows: parquet files, encoded images with labels, tensors in memory."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from vitattack.core.errors import UsageError
from vitattack.core.file_hashes import remembered_sha256
from vitattack.data.formats.array_on_disk import FileChanged, WatchedFile
from vitattack.data.formats.decoding import (
    check_label,
    check_one_size,
    decode_grey,
    decode_rgb,
    decode_size,
    decoder_message,
    stack_pixels,
)
from vitattack.data.formats.encoded_images import EncodedImage, images_in_folder
from vitattack.data.labels.imagenet import folder_labels
from vitattack.data.transform import make_transform

UNSUSPECTED = 1 << 26  # bytes of a group of rows that are read whatever they were compressed from
MOST_GROWTH = 20  # times; pictures of one colour as BMP shrink that much


def _digest_of(content: str, rows: Sequence[int]) -> str:
    return hashlib.sha256(f"{content}|{','.join(map(str, rows))}".encode()).hexdigest()


def _check_growth(path: Path, stored: int, read: int) -> None:
    """Refuse what is small on disk and large in memory: encoded images hardly shrink any further."""
    if read > max(UNSUSPECTED, MOST_GROWTH * stored):
        raise UsageError(f"{path} would grow from {stored:,} bytes to {read:,}: it is refused, fetch it again")


class ParquetSource:
    """Parquet files as on the hub: a column of {bytes, path} and one of labels, read by row group on demand."""

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
            except Exception as error:  # arrow reports a broken file by whatever breaks first
                raise UsageError(
                    f"{path} is not a readable parquet file ({decoder_message(error)}): fetch it again"
                ) from error
            if missing:
                raise UsageError(f"{path} has no column {' or '.join(sorted(missing))}: is it another data set?")
            for group in range(meta.num_row_groups):
                # not the sizes of its columns: arrow aborts the process where their statistics are damaged
                _check_growth(path, path.stat().st_size, meta.row_group(group).total_byte_size)
                rows = meta.row_group(group).num_rows
                if rows < 0:
                    raise UsageError(f"{path} says that it has {rows} rows: fetch it again")
                self._groups.append((total, number, group))
                total += rows
        self._total = total
        self._files = [WatchedFile.at(path) for path in self._paths]
        self._open: tuple[int, pa.Table] | None = None

    @property
    def name(self) -> str:
        return self._paths[0].name

    @property
    def files(self) -> tuple[Path, ...]:
        """Everything the rows are read from."""
        return tuple(self._paths)

    def __len__(self) -> int:
        return self._total

    def read(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        cells = [self.cell(row) for row in rows]
        images = [decode_rgb(data, f"row {row} of {self.name}") for row, (data, _) in zip(rows, cells, strict=True)]
        return stack_pixels(images), torch.tensor([label for _, label in cells])

    def cell(self, row: int) -> tuple[bytes, int]:
        """The encoded image and the label of a row."""
        table, first = self._group_of(row)
        try:
            cell, label = table[0][row - first].as_py(), table[1][row - first].as_py()
        except ValueError as error:  # bytes that are not the text they claim to be
            raise UsageError(
                f"row {row} of {self.name} is damaged ({decoder_message(error)}): fetch the file again"
            ) from error
        data = cell.get("bytes") if isinstance(cell, dict) else cell
        if not isinstance(data, bytes) or not isinstance(label, int):
            raise UsageError(f"row {row} of {self.name} has no image or no label: repair the file")
        check_label(label, f"row {row} of {self.name}")
        return data, label

    def labels(self, rows: Sequence[int]) -> Sequence[int]:
        """The classes of some rows, without the images."""
        try:
            columns = [pq.ParquetFile(path).read(columns=[self._columns[1]])[0].to_pylist() for path in self._paths]
        except Exception as error:  # as above
            raise UsageError(f"{self.name} is not readable ({decoder_message(error)}): fetch it again") from error
        every = [label for column in columns for label in column]
        return [every[row] for row in rows]

    def names_and_labels(self) -> list[tuple[str, int]]:
        """The file name and the label of every row, without the images."""
        pairs: list[tuple[str, int]] = []
        image, label = self._columns
        for path in self._paths:
            try:
                table = pq.ParquetFile(path).read(columns=[f"{image}.path", label])
                names = [cell["path"] for cell in table[image].to_pylist()]
            except Exception as error:  # as above
                raise UsageError(f"{path} does not name its images: use the tar or a folder instead") from error
            pairs += zip(names, table[label].to_pylist(), strict=True)
        if any(not isinstance(name, str) or not isinstance(label, int) for name, label in pairs):
            raise UsageError(f"{self.name} does not say which image a row is: use the tar or a folder instead")
        return pairs

    def _group_of(self, row: int) -> tuple[pa.Table, int]:
        group = bisect_right(self._groups, row, key=lambda entry: entry[0]) - 1
        first, file, number = self._groups[group]
        if self._open is None or self._open[0] != group:
            path = self._paths[file]
            try:
                table = pq.ParquetFile(path).read_row_group(number, columns=self._columns).select(self._columns)
            except Exception as error:  # as above
                raise UsageError(
                    f"{path} is not a readable parquet file ({decoder_message(error)}): fetch it again"
                ) from error
            self._files[file].check()
            _check_growth(path, path.stat().st_size, table.nbytes)
            self._open = (group, table)
        return self._open[1], first

    @cached_property
    def _content(self) -> str:
        content = "|".join(remembered_sha256(path) for path in self._paths)
        for file in self._files:
            file.check()
        return content

    def digest(self, rows: Sequence[int]) -> str:
        return _digest_of(self._content, rows)


@dataclass(frozen=True, slots=True)
class ImageInParquet:
    """One image of a parquet file, by row."""

    table: ParquetSource
    name: str
    row: int

    def read(self) -> bytes:
        return self.table.cell(self.row)[0]

    def __str__(self) -> str:
        return f"row {self.row} of {self.table.name}"


class ImageSource:
    """Encoded images with their labels, decoded as they are read."""

    class_names: tuple[str, ...] | None = None  # by label, where the labels number names of folders
    channels = 3  # of the tensors; 1 for a model that takes grey images

    def __init__(
        self, items: Sequence[tuple[EncodedImage, int]], num_classes: int | None, transform_text: str, where: str = ""
    ) -> None:
        if not items:
            raise UsageError(f"'{where}' holds no image: check the path")
        self.num_classes = num_classes
        self.where = where
        self._items = items
        self._transform = make_transform(transform_text)
        self._transformed = transform_text != "none"  # then all have one size
        self._hashes: dict[int, bytes] = {}  # of the rows that `digest` has read

    def __len__(self) -> int:
        return len(self._items)

    def blob(self, row: int) -> tuple[EncodedImage, int]:
        return self._items[row]

    def labels(self, rows: Sequence[int]) -> Sequence[int]:
        """The classes of some rows, without the images."""
        return [self.blob(row)[1] for row in rows]

    def read(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        images, labels = [], []
        for row in rows:
            blob, label = self.blob(row)
            data, known = blob.read(), self._hashes.get(row)
            if known is not None and hashlib.sha256(data).digest() != known:
                raise FileChanged(str(blob))
            decode = decode_grey if self.channels == 1 else decode_rgb
            images.append(decode(data, str(blob), self._transform))
            labels.append(label)
        return stack_pixels(images), torch.tensor(labels)

    def sizes(self, rows: Sequence[int]) -> Sequence[tuple[int, int]]:
        """Height and width of some images; where a transform makes them equal, those of the first."""
        if self._transformed:
            return [_height_and_width(self.read(rows[:1])[0])] * len(rows)
        blobs = (self.blob(row)[0] for row in rows)
        return [decode_size(blob.read(), str(blob)) for blob in blobs]

    def digest(self, rows: Sequence[int]) -> str:
        hasher = hashlib.sha256()
        for row in rows:
            blob, label = self.blob(row)
            hasher.update(f"{blob.name}|{label}|{self._remembered_sha256(row, blob)}\n".encode())
        return hasher.hexdigest()

    def _remembered_sha256(self, row: int, blob: EncodedImage) -> str:
        """The hash of an encoded image; from now on another content of that row is refused."""
        found = hashlib.sha256(blob.read())
        if self._hashes.setdefault(row, found.digest()) != found.digest():
            raise FileChanged(str(blob))
        return found.hexdigest()


def _height_and_width(images: Tensor) -> tuple[int, int]:
    return int(images.shape[-2]), int(images.shape[-1])


def class_folders(root: Path, transform_text: str = "none") -> ImageSource:
    """A folder with one sub-folder per class. Synset folders get their ImageNet-1k labels whatever their order."""
    if not root.is_dir():
        raise UsageError(f"folder '{root}' does not exist: give the folder that holds one sub-folder per class")
    blobs = images_in_folder(root)
    classed = [blob for blob in blobs if "/" in blob.name]
    if not classed:
        if blobs and blobs[0].name.startswith("ILSVRC2012_val_"):
            raise UsageError(
                f"folder '{root}' holds images of ImageNet but no class folders: write --data imagenet "
                f"--data-dir '{root.parent}' with the folder named val, then the labels are looked up"
            )
        what = "holds images but no class folders" if blobs else "holds no class folder with images"
        raise UsageError(f"folder '{root}' {what}: sort the images into one sub-folder per class")
    names = sorted({blob.name.split("/")[0] for blob in classed})
    labels, num_classes = folder_labels(names)
    source = ImageSource([(blob, labels[blob.name.split("/")[0]]) for blob in classed], num_classes, transform_text)
    if list(labels.values()) == list(range(len(names))) and num_classes == len(names):
        source.class_names = tuple(names)
    return source


class TensorSource:
    """Images and labels in memory."""

    def __init__(self, x: Tensor, y: Tensor, num_classes: int | None = None) -> None:
        self.check(x, y)
        self.num_classes = num_classes
        self._x, self._y = x.detach().float(), y.detach().long()

    @staticmethod
    def check(x: Tensor, y: Tensor) -> None:
        """Refuse tensors that are no images in [0,1] with class numbers."""
        if x.dim() != 4 or not x.is_floating_point():
            raise UsageError(f"images are {x.dtype} of shape {tuple(x.shape)}: give floats in [0,1] of (N, C, H, W)")
        if y.shape != (len(x),):
            raise UsageError(f"{len(x)} images but labels of shape {tuple(y.shape)}: give one label per image")
        if len(x) == 0:
            raise UsageError("there are no images: give at least one")
        if y.is_floating_point() or y.dtype == torch.bool:
            raise UsageError(f"labels are {y.dtype}: give class numbers as integers")
        if y.dtype == torch.uint64:
            check_label(int(y.cpu().numpy().max()), "the data")

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


class ImagesInMemory:
    """Images of several sizes with their labels."""

    def __init__(self, images: Sequence[Tensor], y: Tensor) -> None:
        self.num_classes: int | None = None
        self._images = [TensorSource(image[None], y[at : at + 1]) for at, image in enumerate(images)]
        if y.shape != (len(images),):
            raise UsageError(f"{len(images)} images but labels of shape {tuple(y.shape)}: give one label per image")

    def __len__(self) -> int:
        return len(self._images)

    def read(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        pairs = [self._images[row].read([0]) for row in rows]
        check_one_size([x for x, _ in pairs])
        return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])

    def sizes(self, rows: Sequence[int]) -> Sequence[tuple[int, int]]:
        """Height and width of some images."""
        return [_height_and_width(self._images[row].read([0])[0]) for row in rows]

    def digest(self, rows: Sequence[int]) -> str:
        return _digest_of("|".join(self._images[row].digest([0]) for row in rows), rows)
