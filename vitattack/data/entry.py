"""Contracts of a data set: what its entry in the catalogue says, and how its rows are read.

A package adds a data set by exposing a `DataEntry` under the entry-point group `vitattack.data`; `EntryDefaults` is a
base class that leaves little to write. Entries import torch only when they are opened.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from vitattack.core.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from vitattack.data.imagenet.classes import Classes


class Source(Protocol):
    """Random access to the rows of a whole data set; a row keeps its number for good."""

    num_classes: int | None

    def __len__(self) -> int: ...

    def read(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Images in [0,1] and labels of some rows, in that order."""

    def digest(self, rows: Sequence[int]) -> str:
        """A hash that changes when the content of these rows does."""


@runtime_checkable
class Labelled(Protocol):
    """A source that knows the classes of its rows without reading images."""

    def labels(self, rows: Sequence[int]) -> Sequence[int]: ...


@runtime_checkable
class Sized(Protocol):
    """A source whose images may differ in size, and that knows their sizes without their pixels."""

    def sizes(self, rows: Sequence[int]) -> Sequence[tuple[int, int]]:
        """Height and width of some images as `read` gives them."""


@dataclass(frozen=True)
class OpenedSet:
    """A source, the classes its labels count in, and its rows where the set is a part of the source."""

    source: Source
    classes: Classes | None = None
    rows: tuple[int, ...] | None = None


class DataEntry(Protocol):
    """A data set of the catalogue: its facts, which need no file, and how it is opened."""

    @property
    def summary(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def num_classes(self) -> int: ...
    @property
    def origin(self) -> str:
        """Where to get it."""

    @property
    def takes_transform(self) -> bool:
        """Whether its pixels depend on a transform: encoded images of any size do, arrays do not."""

    @property
    def transform(self) -> str | None:
        """The transform it prescribes; None leaves that to the model."""

    @property
    def px(self) -> int | None:
        """The side of its images where all are square and of one size; None if that depends on the transform."""

    @property
    def parts(self) -> Collection[str]:
        """What may follow the name after a slash."""

    @property
    def default_part(self) -> str: ...
    @property
    def severities(self) -> bool:
        """Whether /1 to /5 may follow the part."""

    @property
    def of_imagenet(self) -> bool:
        """Whether its classes are ImageNet-1k's or made of them, so that a 1000-way model can be evaluated on it."""

    def check_part(self, part: str) -> None:
        """Refuse a part that does not exist."""

    def check_files(self, data_dir: Path | None, part: str = "") -> None:
        """Refuse files that are missing, without opening any."""

    def open(self, data_dir: Path | None, part: str = "", transform: str = "none") -> OpenedSet: ...

    def location(self, data_dir: Path | None) -> str:
        """Where its files are, or would come from."""

    def is_at_hand(self, data_dir: Path | None, part: str = "") -> bool:
        """Whether it can be opened without fetching anything."""

    def content_paths(self, data_dir: Path | None, part: str = "") -> Sequence[Path] | None:
        """The files and folders its rows are read from, without fetching any; None if that is not known."""


class EntryDefaults:
    """Defaults for a data set without parts whose pixels are used as they are stored."""

    summary: str
    takes_transform: bool = False
    transform: str | None = None
    px: int | None = None
    parts: Collection[str] = ()
    default_part: str = ""
    severities: bool = False
    of_imagenet: bool = False

    def check_part(self, part: str) -> None:
        if part:
            raise UsageError(f"'{part[:40]}' is no part of '{self.summary}': write the name alone")

    def check_files(self, data_dir: Path | None, part: str = "") -> None:
        """All that is needed is there."""

    def location(self, data_dir: Path | None) -> str:
        return "embedded"

    def is_at_hand(self, data_dir: Path | None, part: str = "") -> bool:
        return True

    def content_paths(self, data_dir: Path | None, part: str = "") -> Sequence[Path] | None:
        return None


def check_count(count: int, expected: int, where: str) -> None:
    """Refuse files that hold another number of images than the data set."""
    if count != expected:
        raise UsageError(
            f"'{where}' holds {count:,} images, the set has {expected:,}: complete it, or use folder: for a part"
        )
