"""Sources of the ILSVRC-2012 validation images: row r is ILSVRC2012_val_{r + 1} in any layout, labels are looked up."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from vitattack.core.errors import UsageError
from vitattack.data.formats.encoded_images import EncodedImage, images_in
from vitattack.data.formats.row_sources import ImageInParquet, ImageSource, ParquetSource
from vitattack.data.imagenet.classes import Classes
from vitattack.data.labels.imagenet import VALIDATION_IMAGES, synset_numbers, synsets, validation_labels

NAME = re.compile(r"ILSVRC2012_val_(\d{8})(?:_(n\d{8}))?\.jpe?g", re.IGNORECASE)


class ValidationSource(ImageSource):
    """All 50,000 rows; those whose image is missing are refused when they are read."""

    def __init__(
        self, blobs: Iterable[EncodedImage], where: str, transform_text: str, classes: Classes | None = None
    ) -> None:
        labels = validation_labels()
        numbers = {member[0]: number for number, member in enumerate(classes.members)} if classes else None
        self._at: dict[int, int] = {}
        items: list[tuple[EncodedImage, int]] = []
        for blob in blobs:
            row = _row_of(blob.name, where, labels)
            if row in self._at:
                raise UsageError(f"'{where}' holds validation image {row + 1} twice: remove one")
            self._at[row] = len(items)
            items.append((blob, labels[row] if numbers is None else numbers.get(labels[row], -1)))
        super().__init__(items, len(classes) if classes else len(synsets()), transform_text, where)

    def __len__(self) -> int:
        return VALIDATION_IMAGES

    @property
    def available(self) -> Sequence[int]:
        """The rows whose image is there."""
        return sorted(self._at)

    def require(self, rows: Sequence[int]) -> None:
        """Refuse rows whose image is missing."""
        missing = [row for row in rows if row not in self._at]
        if missing:
            raise UsageError(
                f"'{self.where}' holds {len(self._at):,} validation images and lacks {len(missing):,} of those asked "
                f"for, such as ILSVRC2012_val_{missing[0] + 1:08d}.JPEG: complete it, or ask for rows it has"
            )

    def blob(self, row: int) -> tuple[EncodedImage, int]:
        self.require([row])
        return self._items[self._at[row]]

    def digest(self, rows: Sequence[int]) -> str:
        """Equal for the same images in a folder, a tar and a parquet file."""
        self.require(rows)
        hasher = hashlib.sha256()
        for row in rows:
            blob, label = self.blob(row)
            hasher.update(f"{row}|{label}|{self._remembered_sha256(row, blob)}\n".encode())
        return hasher.hexdigest()


def _row_of(name: str, where: str, labels: Sequence[int]) -> int:
    path = PurePosixPath(name)
    match = NAME.fullmatch(path.name)
    if match is None or not 1 <= int(match[1]) <= VALIDATION_IMAGES:
        raise UsageError(
            f"'{where}' holds {ascii(name)[:60]}, which is no ILSVRC-2012 validation image: use folder: for it"
        )
    row = int(match[1]) - 1
    synset = match[2] or (path.parent.name if re.fullmatch(r"n\d{8}", path.parent.name) else None)
    if synset is not None and synset_numbers().get(synset) != labels[row]:
        known = (
            "is no ImageNet-1k synset"
            if synset not in synset_numbers()
            else f"is not its class {synsets()[labels[row]]}"
        )
        raise UsageError(f"'{where}' has {path.name} under {synset}, which {known}: sort the folders again")
    return row


def open_validation_images(path: Path, transform_text: str, classes: Classes | None = None) -> ValidationSource:
    """A folder of synset folders, a flat folder, or the official tar, read in place."""
    return ValidationSource(images_in(path), str(path), transform_text, classes)


def open_validation_parquet(
    paths: Sequence[Path], transform_text: str, classes: Classes | None = None
) -> ValidationSource:
    """The hub's parquet files: their rows are recognised by file name and their labels are checked."""
    table = ParquetSource(paths, "image", "label", 1000)
    blobs, labels = [], validation_labels()
    for row, (name, label) in enumerate(table.names_and_labels()):
        if labels[_row_of(name, str(paths[0]), labels)] != label:
            raise UsageError(
                f"row {row} of {paths[0].name} labels {ascii(name)[:40]} {label}: the file is damaged, fetch it again"
            )
        blobs.append(ImageInParquet(table, name, row))
    return ValidationSource(blobs, str(paths[0].parent), transform_text, classes)
