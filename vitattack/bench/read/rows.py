"""What a data text means as far as that is known without opening it: how many images, of how many classes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from vitattack.bench.plan import facts
from vitattack.core.errors import UsageError
from vitattack.core.registry import did_you_mean
from vitattack.core.words import printable
from vitattack.data.rows import select, split
from vitattack.models.zoo.entries import Entry
from vitattack.text.image_transform import parse_transform

PATHS = ("folder", "npz", "imagenet-classes")


@dataclass(frozen=True)
class Rows:
    """`n` is None where only the files tell, `most` then bounds it if anything does."""

    name: str
    n: int | None
    most: int | None = None
    classes: int | None = None
    of_imagenet: bool = True

    def taught(self, entry: Entry) -> bool:
        """Whether a model was trained for these images: what a wildcard is about."""
        head = self.name.partition("/")[0]
        return self.suits(entry) and (
            self.classes is None or head.startswith(f"{entry.dataset}-") or head == entry.dataset or self.of_imagenet
        )

    def suits(self, entry: Entry) -> bool:
        """Whether a model of the zoo can be asked about these classes."""
        if self.classes is None or entry.num_classes == self.classes:
            return True
        return self.of_imagenet and entry.num_classes == 1000


def rows(text: str, limit: int | None = None, transform: str | None = None) -> Rows:
    """The images of a data text; refused if it names what there is not."""
    name, asked = split(text)
    if limit is not None:
        if asked is not None:
            raise UsageError(f"data '{text}' is narrowed twice: give one of [...] and limit")
        asked = f":{limit}"
    parse_transform(transform or "none")
    kind, colon, path = name.partition(":")
    if colon and kind in PATHS:
        if not _exists(path.rpartition("@")[0] or path) and not _exists(path):
            raise UsageError(f"data '{printable(name)}' names no file here: check the path")
        if kind == "npz" and transform is not None:
            raise UsageError("npz: images are used as they are: drop the transform")
        found = re.fullmatch(r"\d*:(\d+)|random:(\d+):\d+", asked or "")
        return Rows(name, None, int(found[1] or found[2]) if found else None)
    plain, at, written = name.partition("@")
    head, _, part = plain.partition("/")
    known = facts.data_sets()
    said = known.get(plain if plain in known else head)
    if said is None:
        raise UsageError(did_you_mean("data set", plain, [*known, "folder:PATH", "npz:PATH"]))
    _check_part(head, part, said)
    if (at or transform) and not said.transform:
        raise UsageError(f"'{head}' is used as it is: drop the transform")
    parse_transform(written if at else "none")
    at_rows, _ = select(asked, said.rows, text)
    return Rows(plain, len(at_rows), None, said.classes, said.of_imagenet)


def _exists(path: str) -> bool:
    """False too for what no file can be called."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def _check_part(head: str, part: str, said: facts.DataFacts) -> None:
    if not said.parts:
        if part:
            raise UsageError(f"'{head}' has no parts: write the name alone, without /{part[:40]}")
        return
    name, _, level = (part or said.default).partition("/")
    if name not in said.parts:
        raise UsageError(
            did_you_mean(f"part of {head}", name, said.parts) if name else f"name a part: {head}/{said.parts[0]}"
        )
    if level and not (said.severities and level in tuple("12345")):
        raise UsageError(f"'{head}/{part[:40]}' is none: severities are 1 to 5, as in {head}/{name}/3")
