"""The cells of a benchmark: one model, one attack, one budget, one seed, on the data of the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from vitattack.bench.read.selectors import fits
from vitattack.bench.schema import Attack, Bench, Model, Reference, Settings
from vitattack.core.errors import UsageError
from vitattack.core.words import printable


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

    def fits(self, pattern: str) -> bool:
        """A wildcard over the whole name, or over one of its parts."""
        parts = (self.name, self.label, self.model, self.attack_label, self.attack, self.threat, f"seed={self.seed}")
        return any(pattern == part or fnmatchcase(part, pattern) for part in parts)


def cells(bench: Bench, only: Sequence[str] = (), skip: Sequence[str] = ()) -> tuple[Cell, ...]:
    """Every cell in the order of the file; `only` and `skip` are wildcards over names and their parts."""
    every = tuple(_all(bench))
    if not every:
        raise UsageError(f"{bench.path}:{bench.skip[0].line}: skip leaves no cell: drop an entry of it")
    for option, patterns in (("--only", only), ("--skip", skip)):
        for pattern in patterns:
            if not any(cell.fits(pattern) for cell in every):
                raise UsageError(
                    f"{option} '{printable(pattern)}' names no cell: cells are like '{every[0].name}', "
                    "and * stands for anything"
                )
    chosen = [cell for cell in every if not only or any(cell.fits(p) for p in only)]
    left = tuple(cell for cell in chosen if not any(cell.fits(p) for p in skip))
    if not left:
        raise UsageError("--only and --skip leave no cell: drop one of them")
    return left


def _all(bench: Bench) -> Iterator[Cell]:
    for model in bench.models:
        for attack in bench.attacks:
            for threat in bench.threats:
                if not any(fits(pattern, model, attack, threat) for pattern in bench.skip):
                    for seed in bench.seeds:
                        yield _cell(bench, model, attack, threat, seed)


def _cell(bench: Bench, model: Model, attack: Attack, threat: str, seed: int) -> Cell:
    values = {**asdict(bench.settings), **model.settings}
    for override in bench.overrides:
        if fits(override, model, attack, threat):
            values |= override.set
    return Cell(
        model=model.text,
        label=model.label,
        attack=attack.text,
        attack_label=attack.label,
        threat=threat,
        seed=seed,
        data=bench.data,
        settings=Settings(**values),
        options=dict(model.options),
        published=bench.published(model.label, attack.label, threat),
        runnable=not (model.published or attack.published),
    )
