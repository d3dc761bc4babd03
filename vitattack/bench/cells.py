"""Cells of a benchmark: one model, one attack, one budget, one seed, on the data of the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from vitattack.bench.schema import AttackColumn, Benchmark, CellSettings, ModelRow, Reference, covered
from vitattack.core.errors import UsageError
from vitattack.core.words import printable


@dataclass(frozen=True)
class Cell:
    """One evaluation, described by texts only so that it can be sent to any worker."""

    model: str
    label: str
    attack: str  # as written in the file
    attack_label: str
    threat: str  # canonical
    seed: int
    data: str
    settings: CellSettings
    options: Mapping[str, Any] = field(default_factory=dict)  # fields of FileOptions
    published: Reference | None = None
    runnable: bool = True  # False: tables only show its published number

    @property
    def name(self) -> str:
        """Full name, as matched by --only and --skip."""
        return f"{self.label}/{self.attack_label}/{self.threat}/{self.seed}"

    def matches(self, pattern: str) -> bool:
        """Whether a wildcard matches the full name or one of its parts."""
        names = (self.name, self.label, self.model, self.attack_label, self.attack, self.threat, f"seed={self.seed}")
        return any(pattern == name or fnmatchcase(name, pattern) for name in names)


def cells(bench: Benchmark, only: Sequence[str] = (), skip: Sequence[str] = ()) -> tuple[Cell, ...]:
    """Cells in the order of the file, narrowed by the wildcards of `only` and `skip`."""
    every = tuple(_all(bench))
    if not every:
        raise UsageError(f"{bench.path}:{bench.skip[0].line}: skip leaves no cell: drop an entry of it")
    for option, patterns in (("--only", only), ("--skip", skip)):
        for pattern in patterns:
            if not any(cell.matches(pattern) for cell in every):
                raise UsageError(
                    f"{option} '{printable(pattern)}' names no cell: cells are like '{every[0].name}', "
                    "and * stands for anything"
                )
    selected = [cell for cell in every if not only or any(map(cell.matches, only))]
    remaining = tuple(cell for cell in selected if not any(map(cell.matches, skip)))
    if not remaining:
        raise UsageError("--only and --skip leave no cell: drop one of them")
    return remaining


def _all(bench: Benchmark) -> Iterator[Cell]:
    for model in bench.models:
        for attack in bench.attacks:
            for threat in bench.threats:
                if not covered(bench.skip, model, attack, threat):
                    for seed in bench.seeds:
                        yield _cell(bench, model, attack, threat, seed)


def _cell(bench: Benchmark, model: ModelRow, attack: AttackColumn, threat: str, seed: int) -> Cell:
    settings = {**asdict(bench.settings), **model.settings}
    for override in bench.overrides:
        if override.covers(model, attack, threat):
            settings |= override.set
    return Cell(
        model=model.text,
        label=model.label,
        attack=attack.text,
        attack_label=attack.label,
        threat=threat,
        seed=seed,
        data=bench.data,
        settings=CellSettings(**settings),
        options=dict(model.options),
        published=bench.published(model.label, attack.label, threat),
        runnable=not (model.published or attack.published),
    )
