"""The cells of a benchmark: one model, one attack, one budget, one seed, on the data of the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vitattack.bench.file import Bench, Reference, Settings


@dataclass(frozen=True)
class Cell:
    """Texts only, so that it travels to any worker; `attack` is as written, `threat` canonical."""

    model: str
    label: str
    attack: str
    attack_label: str
    threat: str
    seed: int
    data: str
    settings: Settings
    options: Mapping[str, Any] = field(default_factory=dict)  # of zoo.FileOptions
    published: Reference | None = None
    runnable: bool = True  # False: the table only shows what was published

    @property
    def name(self) -> str:
        """What --only and --skip are matched with."""
        return f"{self.label}/{self.attack_label}/{self.threat}/{self.seed}"


def cells(bench: Bench, only: Sequence[str] = (), skip: Sequence[str] = ()) -> tuple[Cell, ...]:
    """Every cell in the order of the file; `only` and `skip` are wildcards over names and their parts."""
    raise NotImplementedError
