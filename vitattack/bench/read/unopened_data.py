"""Data sets before they are opened: number of images and classes, as far as a data text tells them."""

from __future__ import annotations

from dataclasses import dataclass

from vitattack.core.errors import UsageError
from vitattack.data.entry import DataEntry
from vitattack.data.request import NPZ, DataRequest, check_data, read_request
from vitattack.data.rows import Draw, EvenDraw, Limit, Slice, parse_rows, select_rows
from vitattack.models.zoo.entry import ZooEntry
from vitattack.text.image_transform import parse_transform


@dataclass(frozen=True)
class UnopenedData:
    """A data set with its selected rows."""

    name: str
    entry: DataEntry | None  # None for a path
    n: int | None  # None if only the files tell
    most: int | None = None  # bound on n, if the text gives one

    @property
    def classes(self) -> int | None:
        """Number of classes, None if only the files tell."""
        return None if self.entry is None else self.entry.num_classes

    def fits_training_of(self, model: ZooEntry) -> bool:
        """Whether a model was trained for images like these: the models that a wildcard stands for."""
        if self.entry is None:
            return True
        head = self.name.partition("/")[0]
        same_data = head == model.dataset or head.startswith(f"{model.dataset}-")
        return self.suits(model) and (same_data or self.entry.of_imagenet)

    def suits(self, model: ZooEntry) -> bool:
        """Whether the classes of a model cover those of the data."""
        if self.entry is None or model.num_classes == self.entry.num_classes:
            return True
        return self.entry.of_imagenet and model.num_classes == 1000


def look_up_data(text: str, limit: int | None = None, transform: str | None = None) -> UnopenedData:
    """Look up the data set of a text; an unknown name, part or selection of rows is refused, missing files are not."""
    parse_transform(transform or "none")
    request = read_request(text, limit)
    if request.entry is None:
        return _at_path(text, limit, transform)
    request.entry.check_part(request.part)
    for asked in (transform, request.transform):
        if asked is not None:
            request.require_transform(asked)
            parse_transform(asked)
    assert request.total is not None
    rows, _ = select_rows(request.rows, request.total, text)
    name = f"{request.name}/{request.part}" if request.part else request.name
    return UnopenedData(name, request.entry, len(rows))


def _at_path(text: str, limit: int | None, transform: str | None) -> UnopenedData:
    request = check_data(text, limit=limit)
    if request.kind == NPZ and transform is not None:
        raise UsageError("npz: images are used as they are: drop the transform")
    return UnopenedData(f"{request.kind}:{request.name}", None, None, most=_bound(request))


def _bound(request: DataRequest) -> int | None:
    match parse_rows(request.rows or ":"):
        case Slice(_, last):
            return last
        case Draw(count, _) | EvenDraw(count, _) | Limit(count):
            return count
    return None
