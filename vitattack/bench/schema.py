"""Benchmark as read from its file: models x attacks x threats x seeds on one data set, with published numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Any

AXES = ("model", "attack", "threat", "seed")
CLEAN = "clean"  # the column of clean accuracies, which needs no attack
WORST_CASE = "worst case"  # the column over all attacks of a model


@dataclass(frozen=True)
class CellSettings:
    """Settings of one evaluation: every option that can change a record and that a file may set."""

    batch_size: int = 64
    limit: int | None = None
    calibration: str | None = None
    transform: str | None = None
    perceptual: bool = False
    threads: int | None = 1  # fixed, so that records do not depend on the machine


@dataclass(frozen=True)
class Named:
    """A model or an attack of the file, with the label that tables and patterns know it by."""

    text: str
    label: str
    line: int
    published: bool = False  # never run here: tables show only its published numbers

    def matches(self, pattern: str) -> bool:
        """Whether a wildcard matches its label or its text."""
        return any(pattern == name or fnmatchcase(name, pattern) for name in (self.label, self.text))


@dataclass(frozen=True)
class ModelRow(Named):
    """A model of the benchmark, with what its row sets besides."""

    options: Mapping[str, Any] = field(default_factory=dict)  # fields of FileOptions, for a checkpoint file
    settings: Mapping[str, Any] = field(default_factory=dict)  # fields of CellSettings, over the defaults of the file


@dataclass(frozen=True)
class AttackColumn(Named):
    """An attack of the benchmark, by its text as written."""


@dataclass(frozen=True)
class Reference:
    """A published accuracy of one cell, in per cent; n is None if the source does not state it."""

    model: str  # labels
    attack: str
    threat: str  # canonical; empty for clean accuracy
    value: float
    n: int | None
    source: str
    line: int


@dataclass(frozen=True)
class Selector:
    """An entry of `overrides` or `skip`: wildcards that select cells, and the settings to change there."""

    models: tuple[str, ...] = ()  # an empty tuple selects all
    attacks: tuple[str, ...] = ()
    threats: tuple[str, ...] = ()
    set: Mapping[str, Any] = field(default_factory=dict)
    line: int = 0

    def covers(self, model: ModelRow, attack: AttackColumn, threat: str) -> bool:
        """Whether a cell is selected."""
        return (
            (not self.models or any(map(model.matches, self.models)))
            and (not self.attacks or any(map(attack.matches, self.attacks)))
            and (not self.threats or any(fnmatchcase(threat, pattern) for pattern in self.threats))
        )


def covered(selectors: Sequence[Selector], model: ModelRow, attack: AttackColumn, threat: str) -> bool:
    """Whether any of the selectors selects a cell."""
    return any(selector.covers(model, attack, threat) for selector in selectors)


@dataclass(frozen=True)
class Benchmark:
    """A checked benchmark file: all names in it are known, and each published number belongs to a cell."""

    path: str
    title: str
    source: str
    data: str
    threats: tuple[str, ...]  # canonical, one budget each
    seeds: tuple[int, ...]
    models: tuple[ModelRow, ...]
    attacks: tuple[AttackColumn, ...]
    settings: CellSettings
    overrides: tuple[Selector, ...]
    skip: tuple[Selector, ...]
    reference: tuple[Reference, ...]
    rows: tuple[str, ...] = ("model",)
    columns: tuple[str, ...] = ("attack", "threat")
    notes: str = ""
    unions: tuple[tuple[str, ...], ...] = ()  # threats whose worst case per sample has a number of its own

    @property
    def name(self) -> str:
        """File name without folder and suffix."""
        return PurePath(self.path).name.removesuffix(".yaml").removesuffix(".yml")

    def published(self, model: str, attack: str, threat: str) -> Reference | None:
        """Published number of a cell, looked up by labels; for clean accuracy the threat is ignored."""
        for reference in self.reference:
            same_threat = attack == CLEAN or reference.threat == threat
            if (reference.model, reference.attack) == (model, attack) and same_threat:
                return reference
        return None
