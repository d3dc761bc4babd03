"""Comparison of a benchmark's results with published numbers, and the worst case of each model over its attacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from vitattack.bench.run.results import BenchmarkResult, CellResult
from vitattack.bench.schema import CLEAN, WORST_CASE, Reference
from vitattack.bench.tasks import CellStatus
from vitattack.records import stats
from vitattack.records.stats import Accuracy, Gap


@dataclass(frozen=True)
class ComparedNumber:
    """An accuracy in a table: measured, published or both.

    Clean accuracy is one number per model: its attack is `clean`, its threat empty, its seed None.
    """

    model: str
    attack: str
    threat: str
    seed: int | None
    status: CellStatus
    measured: Accuracy | None
    published: Reference | None
    result: CellResult  # of the cell that the measured number comes from

    @cached_property
    def gap(self) -> Gap | None:
        """Measured minus published accuracy."""
        if self.measured is None or self.published is None:
            return None
        return stats.gap(self.measured, self.published.value / 100, self.published.n)

    @property
    def share(self) -> float | None:
        """Measured accuracy, or else the published one."""
        if self.measured is not None:
            return self.measured.accuracy
        return self.published.value / 100 if self.published else None


def compared_numbers(results: BenchmarkResult) -> tuple[ComparedNumber, ...]:
    """Clean and robust accuracies model by model, in the order of the file; cells without any number are left out."""
    numbers: list[ComparedNumber] = []
    for label in dict.fromkeys(result.cell.label for result in results.cells):
        of_model = [result for result in results.cells if result.cell.label == label]
        numbers += [_clean(results, label, of_model), *map(_robust, of_model)]
    return tuple(number for number in numbers if number.status != "published" or number.published is not None)


def _clean(results: BenchmarkResult, label: str, of_model: Sequence[CellResult]) -> ComparedNumber:
    """Clean accuracy from the cell with most images: all cells of a model see the same ones."""
    largest = max(of_model, key=lambda result: result.n or 0)
    published = results.bench.published(label, CLEAN, "")
    return ComparedNumber(label, CLEAN, "", None, largest.status, largest.clean, published, largest)


def _robust(result: CellResult) -> ComparedNumber:
    cell = result.cell
    return ComparedNumber(
        model=cell.label,
        attack=cell.attack_label,
        threat=cell.threat,
        seed=cell.seed,
        status=result.status,
        measured=result.robust,
        published=cell.published,
        result=result,
    )


def worst_cases(results: BenchmarkResult) -> tuple[ComparedNumber, ...]:
    """The per-sample worst case of each model over all of its attacks, under each budget and union, and with each seed.

    Nothing where a model has one attack on one budget, or one without a result: a worst case over fewer attacks is another
    number.
    """
    groups: dict[tuple[str, tuple[str, ...], int], list[CellResult]] = {}
    if any(attack.label == WORST_CASE for attack in results.bench.attacks):
        return ()  # a column of that name is the file's own
    for members in (*((threat,) for threat in results.bench.threats), *results.bench.unions):
        for result in results.cells:
            cell = result.cell
            if cell.runnable and cell.threat in members:
                groups.setdefault((cell.label, tuple(members), cell.seed), []).append(result)
    numbers = []
    for (label, members, seed), found in groups.items():
        whole = {result.cell.threat for result in found} == set(members)
        if len(found) < 2 or not whole or not all(result.verdicts for result in found):
            continue
        union, threat = stats.worst_case([result.verdicts for result in found]), "+".join(members)
        cell = replace(found[0].cell, attack="", attack_label=WORST_CASE, threat=threat)
        numbers.append(
            ComparedNumber(label, WORST_CASE, threat, seed, "ok", union, None, CellResult(cell, "ok", robust=union))
        )
    return tuple(numbers)
