"""Data sets before they are opened: number of images and classes, as far as a data text tells them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from vitattack.core.errors import UsageError
from vitattack.core.words import printable
from vitattack.data.request import DataRequest, read_request
from vitattack.data.rows import select_rows
from vitattack.models.zoo.entry import ZooEntry
from vitattack.text.image_transform import parse_transform


@dataclass(frozen=True)
class UnopenedData:
    """A data set with its selected rows."""

    name: str
    n: int | None  # None if only the files tell
    most: int | None = None  # bound on n, if the text gives one
    classes: int | None = None
    of_imagenet: bool = True  # its classes are among those of ImageNet-1k

    def fits_training_of(self, entry: ZooEntry) -> bool:
        """Whether a model was trained for images like these: the models that a wildcard stands for."""
        head = self.name.partition("/")[0]
        same_data = head == entry.dataset or head.startswith(f"{entry.dataset}-")
        return self.suits(entry) and (self.classes is None or same_data or self.of_imagenet)

    def suits(self, entry: ZooEntry) -> bool:
        """Whether the classes of a model cover those of the data."""
        if self.classes is None or entry.num_classes == self.classes:
            return True
        return self.of_imagenet and entry.num_classes == 1000


def look_up_data(text: str, limit: int | None = None, transform: str | None = None) -> UnopenedData:
    """Look up the data set of a text; an unknown name, part or selection of rows is refused."""
    request = read_request(text, limit)
    parse_transform(transform or "none")
    parse_transform(request.transform or "none")
    entry, total = request.entry, request.total
    if entry is None or total is None:
        return _at_path(request, transform)
    entry.check_part(request.part)
    if transform is not None:
        request.require_transform(transform)
    if request.transform is not None:
        request.require_transform(request.transform)
    name = f"{request.name}/{request.part}" if request.part else request.name
    selected, _ = select_rows(request.rows, total, text)
    return UnopenedData(name, len(selected), None, entry.num_classes, entry.of_imagenet)


def _at_path(request: DataRequest, transform: str | None) -> UnopenedData:
    name = f"{request.kind}:{request.name}"
    if not _exists(request.name):
        raise UsageError(f"data '{printable(name)}' names no file here: check the path")
    if request.kind == "npz" and transform is not None:
        raise UsageError("npz: images are used as they are: drop the transform")
    bound = re.fullmatch(r"\d*:(\d+)|random:(\d+):\d+", request.rows or "")
    return UnopenedData(name, None, int(bound[1] or bound[2]) if bound else None)


def _exists(path: str) -> bool:
    """Whether a path exists; False also for texts that cannot be paths."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False
