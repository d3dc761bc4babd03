"""Data sets in their official layouts below --data-dir."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vitattack.core.errors import UsageError
from vitattack.core.registry import did_you_mean
from vitattack.data.entry import EntryDefaults, OpenedSet

SEVERITIES = tuple("12345")
# Opens what lies at a path: the part asked for, and the transform of its images.
Opener = Callable[[Path, str, str], OpenedSet]


@dataclass(frozen=True)
class LocalSet(EntryDefaults):
    """A data set at the first of several places below the data folder that exists."""

    summary: str
    places: tuple[str, ...]
    origin: str
    num_classes: int
    rows: int
    opener: Opener = field(repr=False)
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # each with its own places
    default_part: str = ""
    severities: bool = False
    needs_severity: bool = False
    takes_transform: bool = True
    transform: str | None = None
    of_imagenet: bool = False
    beside: tuple[str, ...] = ()  # files next to the one of a part that are read with it

    def check_part(self, part: str) -> None:
        part = part or self.default_part
        name, slash, severity = part.partition("/")
        if self.parts and name not in self.parts:
            fix = did_you_mean("part", name, self.parts) if name else f"name a part: {', '.join([*self.parts][:20])}"
            raise UsageError(f"{self.summary}: {fix}")
        if not self.parts or (slash and not self.severities):
            super().check_part(part)
        self._check_severity(name, slash + severity)

    def check_files(self, data_dir: Path | None, part: str = "") -> None:
        self._find(data_dir, part or self.default_part)

    def open(self, data_dir: Path | None, part: str = "", transform: str = "none") -> OpenedSet:
        part = part or self.default_part
        return self.opener(self._find(data_dir, part), part, transform)

    def location(self, data_dir: Path | None) -> str:
        names = [self.default_part] if self.default_part or not self.parts else list(self.parts)
        path = next((path for name in names if (path := self._existing(data_dir, name))), None)
        return str(path) if path else "to be fetched"

    def is_at_hand(self, data_dir: Path | None, part: str = "") -> bool:
        name = (part or self.default_part).partition("/")[0]
        return bool(name or not self.parts) and self._existing(data_dir, name) is not None

    def content_paths(self, data_dir: Path | None, part: str = "") -> Sequence[Path] | None:
        path = self._existing(data_dir, (part or self.default_part).partition("/")[0])
        return None if path is None else [path, *(path.parent / name for name in self.beside)]

    def _find(self, data_dir: Path | None, part: str) -> Path:
        name = part.partition("/")[0]
        path = self._existing(data_dir, name)
        if path is None:
            places = " or ".join(self.parts.get(name) or self.places[:2])
            lacking = f"'{data_dir}' has no" if data_dir else "no --data-dir is given that has a"
            raise UsageError(
                f"{self.summary}: {lacking} {places}: get it from {self.origin}, and name the folder it is in"
            )
        return path

    def _check_severity(self, name: str, severity: str) -> None:
        title = self.summary.partition(",")[0]
        text = f"{title.lower().replace('cifar-', 'cifar')}/{name}"
        if severity and severity[1:] not in SEVERITIES:
            raise UsageError(f"unknown severity '{severity[1:21]}' of {title}: write {text}/1 to {text}/5")
        if self.needs_severity and not severity:
            raise UsageError(f"{title}: '{name}' has five severities: write {text}/1 to {text}/5")

    def _existing(self, data_dir: Path | None, name: str) -> Path | None:
        if data_dir is None:
            return None
        places = [data_dir / place for place in self.places]
        inner = self.parts.get(name)
        if inner:
            places = [place / each for place in [*places, data_dir] for each in inner]
        return next((place for place in places if place.exists()), None)
