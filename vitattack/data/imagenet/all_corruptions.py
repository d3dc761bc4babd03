"""All corruptions of ImageNet-C as one data set: the accuracy on it is the mean over 75 or 95 sets."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor

from vitattack.core.errors import UsageError
from vitattack.data.entry import OpenedSet
from vitattack.data.imagenet.validation import ValidationSource, open_validation_images
from vitattack.data.labels.imagenet import VALIDATION_IMAGES, synsets


class AllCorruptions:
    """Row r is image r // n under corruption r % n of n, so that the first rows are of all corruptions alike."""

    def __init__(self, folders: Sequence[Path], transform: str) -> None:
        self.num_classes: int | None = len(synsets())
        self._folders, self._transform = tuple(folders), transform
        self._opened = cache(self._open)

    def __len__(self) -> int:
        return VALIDATION_IMAGES * len(self._folders)

    def read(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        each = [self._opened(row % len(self._folders)).read([row // len(self._folders)]) for row in rows]
        return torch.cat([x for x, _ in each]), torch.cat([y for _, y in each])

    def digest(self, rows: Sequence[int]) -> str:
        hasher, count = hashlib.sha256(), len(self._folders)
        for at, own in groupby(sorted(rows, key=lambda row: row % count), key=lambda row: row % count):
            hasher.update(f"{at}|{self._opened(at).digest([row // count for row in own])}\n".encode())
        return hasher.hexdigest()

    def _open(self, at: int) -> ValidationSource:
        return open_validation_images(self._folders[at], self._transform)


def open_all(path: Path, transform: str, places: Sequence[Sequence[str]]) -> OpenedSet:
    """All severities of some corruptions; `places` are the folders below `path` where each may be."""
    folders = []
    for some in places:
        found = next((path / place for place in some if (path / place).is_dir()), None)
        if found is None:
            raise UsageError(
                f"'{path}' has no {some[0]}: get it from zenodo.org/records/2235448, or use imagenet-c/fog/3"
            )
        folders += [found / severity for severity in "12345"]
    return OpenedSet(AllCorruptions(folders, transform))
