"""The ILSVRC-2012 validation images in any layout: row r is always ILSVRC2012_val_{r + 1}, its label from the map."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from vitattack.core.errors import UsageError
from vitattack.data.formats.blobs import Blob, in_place
from vitattack.data.formats.row_sources import ImageSource, InParquet, ParquetSource
from vitattack.data.imagenet.classes import Classes
from vitattack.data.labels.imagenet import VALIDATION_IMAGES, synset_numbers, synsets, validation_labels

NAME = re.compile(r"ILSVRC2012_val_(\d{8})(?:_(n\d{8}))?\.jpe?g", re.IGNORECASE)


class ValidationSource(ImageSource):
    """All 50,000 rows; those whose image is not there are refused when they are asked for."""

    def __init__(self, blobs: Iterable[Blob], where: str, transform_text: str, classes: Classes | None = None) -> None:
        labels = validation_labels()
        numbers = {member[0]: number for number, member in enumerate(classes.members)} if classes else None
        self._at: dict[int, int] = {}
        items: list[tuple[Blob, int]] = []
        for blob in blobs:
            row = _row(blob.name, where, labels)
            if row in self._at:
                raise UsageError(f"'{where}' holds validation image {row + 1} twice: remove one")
            self._at[row] = len(items)
            items.append((blob, labels[row] if numbers is None else numbers.get(labels[row], -1)))
        super().__init__(items, len(classes) if classes else len(synsets()), transform_text, where)

    def __len__(self) -> int:
        return VALIDATION_IMAGES

    @property
    def present(self) -> Sequence[int]:
        return sorted(self._at)

    def need(self, rows: Sequence[int]) -> None:
        missing = [row for row in rows if row not in self._at]
        if missing:
            raise UsageError(
                f"'{self.where}' holds {len(self._at):,} validation images and lacks {len(missing):,} of those asked "
                f"for, such as ILSVRC2012_val_{missing[0] + 1:08d}.JPEG: complete it, or ask for rows it has"
            )

    def blob(self, row: int) -> tuple[Blob, int]:
        self.need([row])
        return self._items[self._at[row]]

    def digest(self, rows: Sequence[int]) -> str:
        """Equal for the same images in a folder, a tar and a parquet file."""
        self.need(rows)
        hasher = hashlib.sha256()
        for row, (blob, label) in zip(rows, map(self.blob, rows), strict=True):
            hasher.update(f"{row}|{label}|{hashlib.sha256(blob.read()).hexdigest()}\n".encode())
        return hasher.hexdigest()


def _row(name: str, where: str, labels: Sequence[int]) -> int:
    path = PurePosixPath(name)
    found = NAME.fullmatch(path.name)
    if found is None or not 1 <= int(found[1]) <= VALIDATION_IMAGES:
        raise UsageError(
            f"'{where}' holds {ascii(name)[:60]}, which is no ILSVRC-2012 validation image: use folder: for it"
        )
    row = int(found[1]) - 1
    said = found[2] or (path.parent.name if re.fullmatch(r"n\d{8}", path.parent.name) else None)
    if said is not None and synset_numbers().get(said) != labels[row]:
        known = (
            "is no ImageNet-1k synset" if said not in synset_numbers() else f"is not its class {synsets()[labels[row]]}"
        )
        raise UsageError(f"'{where}' has {path.name} under {said}, which {known}: sort the folders again")
    return row


def from_place(path: Path, transform_text: str, classes: Classes | None = None) -> ValidationSource:
    """A folder of synset folders, a flat folder, or the official tar, read in place."""
    return ValidationSource(in_place(path), str(path), transform_text, classes)


def from_parquet(paths: Sequence[Path], transform_text: str, classes: Classes | None = None) -> ValidationSource:
    """The hub's parquet files: their rows are recognised by file name and their labels are checked."""
    table = ParquetSource(paths, "image", "label", 1000)
    blobs, labels = [], validation_labels()
    for row, (name, label) in enumerate(table.named()):
        if labels[_row(name, str(paths[0]), labels)] != label:
            raise UsageError(
                f"row {row} of {paths[0].name} labels {ascii(name)[:40]} {label}: the file is damaged, fetch it again"
            )
        blobs.append(InParquet(table, name, row))
    return ValidationSource(blobs, str(paths[0].parent), transform_text, classes)
