"""Data sets before they are opened: number of images and classes, as far as a data text tells them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from vitattack.bench.plan import facts
from vitattack.core.errors import UsageError
from vitattack.core.registry import did_you_mean
from vitattack.core.words import printable
from vitattack.data.rows import select_rows, split_rows
from vitattack.models.zoo.entry import ZooEntry
from vitattack.text.image_transform import parse_transform

PATHS = ("folder", "npz", "imagenet-classes")


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
    name, rows = split_rows(text)
    if limit is not None:
        if rows is not None:
            raise UsageError(f"data '{text}' is narrowed twice: give one of [...] and limit")
        rows = f":{limit}"
    parse_transform(transform or "none")
    kind, colon, path = name.partition(":")
    if colon and kind in PATHS:
        return _at_path(name, kind, path, rows, transform)
    plain, at, written_transform = name.partition("@")
    head, _, part = plain.partition("/")
    known = facts.data_sets()
    facts_of_set = known.get(plain if plain in known else head)
    if facts_of_set is None:
        raise UsageError(did_you_mean("data set", plain, [*known, "folder:PATH", "npz:PATH"]))
    _check_part(head, part, facts_of_set)
    if (at or transform) and not facts_of_set.transform:
        raise UsageError(f"'{head}' is used as it is: drop the transform")
    parse_transform(written_transform if at else "none")
    selected, _ = select_rows(rows, facts_of_set.rows, text)
    return UnopenedData(plain, len(selected), None, facts_of_set.classes, facts_of_set.of_imagenet)


def _at_path(name: str, kind: str, path: str, rows: str | None, transform: str | None) -> UnopenedData:
    if not _exists(path.rpartition("@")[0] or path) and not _exists(path):
        raise UsageError(f"data '{printable(name)}' names no file here: check the path")
    if kind == "npz" and transform is not None:
        raise UsageError("npz: images are used as they are: drop the transform")
    bound = re.fullmatch(r"\d*:(\d+)|random:(\d+):\d+", rows or "")
    return UnopenedData(name, None, int(bound[1] or bound[2]) if bound else None)


def _exists(path: str) -> bool:
    """Whether a path exists; False also for texts that cannot be paths."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def _check_part(head: str, part: str, known: facts.DataFacts) -> None:
    if not known.parts:
        if part:
            raise UsageError(f"'{head}' has no parts: write the name alone, without /{part[:40]}")
        return
    name, _, level = (part or known.default).partition("/")
    if name not in known.parts:
        raise UsageError(
            did_you_mean(f"part of {head}", name, known.parts) if name else f"name a part: {head}/{known.parts[0]}"
        )
    if level and not (known.severities and level in tuple("12345")):
        raise UsageError(f"unknown part '{head}/{part[:40]}': severities are 1 to 5, as in {head}/{name}/3")
