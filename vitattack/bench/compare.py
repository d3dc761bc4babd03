"""What a benchmark found beside what others published: one value per cell, and who is on the front."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from vitattack.bench.plan import facts
from vitattack.bench.run.run import Matrix, Measured
from vitattack.bench.run.tasks import Status
from vitattack.bench.schema import CLEAN, Reference
from vitattack.models.zoo.entries import entries
from vitattack.records import stats
from vitattack.records.stats import Accuracy, Gap


@dataclass(frozen=True)
class Shown:
    """A number of a table. Clean accuracy is one per model: its attack is `clean`, its threat empty, its seed None."""

    model: str
    attack: str
    threat: str
    seed: int | None
    status: Status
    measured: Accuracy | None
    published: Reference | None
    cell: Measured

    @cached_property
    def gap(self) -> Gap | None:
        """Measured minus published."""
        if self.measured is None or self.published is None:
            return None
        return stats.gap(self.measured, self.published.value / 100, self.published.n)

    @property
    def share(self) -> float | None:
        """What was measured, else what was published."""
        if self.measured is not None:
            return self.measured.accuracy
        return self.published.value / 100 if self.published else None


def shown(matrix: Matrix) -> tuple[Shown, ...]:
    """Clean and robust numbers model by model, in the order of the file; what nobody measured or published is left out."""
    found: list[Shown] = []
    for label in dict.fromkeys(measured.cell.label for measured in matrix.cells):
        own = [measured for measured in matrix.cells if measured.cell.label == label]
        found += [_clean(matrix, label, own), *map(_robust, own)]
    return tuple(one for one in found if one.status != "published" or one.published is not None)


def _clean(matrix: Matrix, label: str, own: Sequence[Measured]) -> Shown:
    """Of the cell with most images: all of a model see the same ones."""
    best = max(own, key=lambda measured: measured.n or 0)
    return Shown(label, CLEAN, "", None, best.status, best.clean, matrix.bench.published(label, CLEAN, ""), best)


def _robust(measured: Measured) -> Shown:
    cell = measured.cell
    return Shown(
        cell.label,
        cell.attack_label,
        cell.threat,
        cell.seed,
        measured.status,
        measured.robust,
        cell.published,
        measured,
    )


class Point(NamedTuple):
    """A model among those compared by their size; `smallest` and `cheapest`: nobody has less and is as robust."""

    model: str
    parameters: int
    flops: int
    clean: float | None
    robust: float
    measured: bool
    smallest: bool
    cheapest: bool


class Front(NamedTuple):
    """Robust accuracy under one attack and budget against parameters and FLOPs."""

    attack: str
    threat: str
    points: tuple[Point, ...]


def fronts(matrix: Matrix, cells: Sequence[Shown]) -> tuple[Front, ...]:
    """One for each budget: by the attack that most models have, of several the one that leaves least."""
    ran = {attack.label for attack in matrix.bench.attacks if not attack.published}
    usable = [one for one in cells if one.attack in ran and one.share is not None]
    found = []
    for threat in dict.fromkeys(one.threat for one in usable):
        under = [one for one in usable if one.threat == threat]
        attack = max(dict.fromkeys(one.attack for one in under), key=lambda name: _reach(under, name))
        points = tuple(_points(matrix, cells, [one for one in under if one.attack == attack]))
        if len(points) > 1:
            found.append(Front(attack, threat, points))
    return tuple(found)


def _reach(cells: Sequence[Shown], attack: str) -> tuple[int, float]:
    shares = {one.model: one.share or 0.0 for one in cells if one.attack == attack}
    return len(shares), -sum(shares.values()) / len(shares)


def _points(matrix: Matrix, cells: Sequence[Shown], chosen: Sequence[Shown]) -> Iterator[Point]:
    """The models whose size is known, the most robust first; several seeds count by their mean."""
    ids = {model.label: model.text for model in matrix.bench.models}
    clean = {one.model: one.share for one in cells if one.attack == CLEAN}
    rows: list[tuple[str, facts.Figures, float, bool]] = []
    for label in dict.fromkeys(one.model for one in chosen):
        entry = entries().get(ids.get(label, ""))
        figures = facts.figures(entry) if entry else None
        own = [one for one in chosen if one.model == label]
        if figures is not None:
            share = sum(one.share or 0.0 for one in own) / len(own)
            rows.append((label, figures, share, all(one.measured for one in own)))
    for label, figures, share, measured in sorted(rows, key=lambda row: -row[2]):
        others = [(f, s) for name, f, s, _ in rows if name != label]

        def leads(
            what: str, size: int, share: float = share, others: Sequence[tuple[facts.Figures, float]] = others
        ) -> bool:
            return not any(
                s >= share and getattr(f, what) <= size and (s > share or getattr(f, what) < size) for f, s in others
            )

        front = leads("parameters", figures.parameters), leads("flops", figures.flops)
        yield Point(label, figures.parameters, figures.flops, clean.get(label), share, measured, *front)
