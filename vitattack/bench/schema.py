"""A benchmark file: models x attacks x threats x seeds on one data protocol, with the numbers others published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitattack.core.assets import BENCHMARKS
from vitattack.core.errors import UsageError
from vitattack.core.registry import did_you_mean
from vitattack.core.words import printable

AXES = ("model", "attack", "threat", "seed")
CLEAN = "clean"  # the column that no attack makes


@dataclass(frozen=True)
class Settings:
    """How a cell is run; every option that can change a record and that a file may set."""

    batch_size: int = 64
    limit: int | None = None
    calibration: str | None = None
    transform: str | None = None
    perceptual: bool = False
    threads: int | None = 1  # fixed, so that a record does not depend on the machine


@dataclass(frozen=True)
class Model:
    """A row: a model by its text, or one that only published numbers are known of."""

    text: str
    label: str
    line: int
    published: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)  # what zoo.FileOptions takes, for a checkpoint file
    settings: Mapping[str, Any] = field(default_factory=dict)  # what differs from the defaults for this row


@dataclass(frozen=True)
class Attack:
    """A column: an attack as it is written, and what the table calls it."""

    text: str
    label: str
    line: int
    published: bool = False  # an attack that is not run here: the column shows what others published


@dataclass(frozen=True)
class Reference:
    """A published number, in per cent, of one cell; n is None where nobody says it."""

    model: str  # labels
    attack: str
    threat: str  # canonical; empty for clean
    value: float
    n: int | None
    source: str
    line: int


@dataclass(frozen=True)
class Override:
    """Settings for the cells that patterns name; an empty tuple fits everything."""

    models: tuple[str, ...] = ()
    attacks: tuple[str, ...] = ()
    threats: tuple[str, ...] = ()
    set: Mapping[str, Any] = field(default_factory=dict)
    line: int = 0


@dataclass(frozen=True)
class Bench:
    """A file, checked: every name in it is known and every reference has its cell."""

    path: str
    title: str
    source: str
    data: str
    threats: tuple[str, ...]  # canonical, one budget each
    seeds: tuple[int, ...]
    models: tuple[Model, ...]
    attacks: tuple[Attack, ...]
    settings: Settings
    overrides: tuple[Override, ...]
    skip: tuple[Override, ...]
    reference: tuple[Reference, ...]
    rows: tuple[str, ...] = ("model",)
    columns: tuple[str, ...] = ("attack", "threat")
    notes: str = ""

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2].removesuffix(".yaml").removesuffix(".yml")

    def published(self, model: str, attack: str, threat: str) -> Reference | None:
        """The published number of a cell, by its labels; for `clean` no threat matters."""
        for found in self.reference:
            if (found.model, found.attack) == (model, attack) and (attack == CLEAN or found.threat == threat):
                return found
        return None


def shipped() -> dict[str, Path]:
    """The benchmarks that come with vitattack."""
    return {path.stem: path for path in sorted(BENCHMARKS.glob("*.yaml"))}


def read(text: str) -> Bench:
    """The benchmark of a name, which stands for benchmarks/NAME.yaml, or of a YAML file; a mistake is named by its line."""
    from vitattack.bench.read.reader import bench_of  # it builds on this module

    path = Path(text) if text.endswith((".yaml", ".yml")) else shipped().get(text)
    if path is None:
        raise UsageError(did_you_mean("benchmark", printable(text), [*shipped(), "FILE.yaml"]))
    return bench_of(path)
