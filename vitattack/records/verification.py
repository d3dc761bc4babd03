"""Verified examples: what was checked of each, and who found what when they join the worst case of stored runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from vitattack.core.errors import UsageError
from vitattack.core.shown import Shown
from vitattack.records import stats
from vitattack.records.comparison import same_images
from vitattack.records.record import SampleRecord
from vitattack.records.result import Result, label
from vitattack.records.stats import Accuracy

# Evidence of a sample: whether its file has an example, and what is wrong with it.
GIVEN = "given"
FAULTS = {
    "not_finite": "hold NaN or infinite pixels",
    "out_of_range": "leave [0,1]",
    "out_of_budget": "lie outside the budget",
    "other_label": "have another label than the data",
    "other_prediction": "have another prediction than the file says",
}
SIZE, AFTER_ROUNDING, SIZE_ROUNDED = "size_given", "fooled_at_8_bits", "size_at_8_bits"
LISTED = 8


class Found(NamedTuple):
    """What one source contributes to a worst case."""

    source: str
    fooled: int
    alone: int  # images that no other source fools
    robust: Accuracy


def some_rows(rows: Sequence[int]) -> str:
    """The first of some images, and how many more there are."""
    more = f" and {len(rows) - LISTED} more" if len(rows) > LISTED else ""
    return ", ".join(map(str, rows[:LISTED])) + more


@dataclass(frozen=True, repr=False)
class Verification(Shown):
    """The result of judging given examples, beside stored runs on the same images."""

    TABLES = "vitattack.report.verification:verification_tables"

    result: Result
    source: str
    against: tuple[Result, ...] = ()

    def __repr__(self) -> str:
        faults = ", ".join(f"{len(rows)} {FAULTS[name]}" for name, rows in self.faults.items() if rows)
        return f"Verification({self.source}: {len(self.given)} examples, {len(self.fooled)} fool{'; ' * bool(faults)}{faults})"

    @cached_property
    def given(self) -> list[SampleRecord]:
        return [record for record in self.result.records if record.evidence.get(GIVEN)]

    @cached_property
    def faults(self) -> dict[str, tuple[int, ...]]:
        """Images whose example is refuted, by the kind of fault."""
        return {name: self._with(lambda record, name=name: bool(record.evidence.get(name))) for name in FAULTS}  # type: ignore[misc]

    @cached_property
    def fooled(self) -> tuple[int, ...]:
        return self._with(lambda record: record.status == "fooled")

    @cached_property
    def lost_by_rounding(self) -> tuple[int, ...]:
        """Images whose example fools as it is, and not as an image of 8 bits."""
        return self._with(lambda r: r.status == "fooled" and not r.evidence.get(AFTER_ROUNDING))

    @property
    def largest(self) -> float:
        """The largest finite perturbation."""
        sizes = [float(record.evidence.get(SIZE, -1)) for record in self.given]
        return max((size for size in sizes if size >= 0), default=0.0)

    @property
    def refuted(self) -> bool:
        return any(self.faults.values())

    def _with(self, holds: Callable[[SampleRecord], bool]) -> tuple[int, ...]:
        return tuple(record.index for record in self.given if holds(record))

    @cached_property
    def worst_case(self) -> Accuracy:
        if not self.against:
            return self.result.robust
        return stats.worst_case([result.records for result in (*self.against, self.result)])

    @cached_property
    def contributions(self) -> tuple[Found, ...]:
        """Who found what: every stored run and the given examples."""
        sources = [*((label(result.job.attack), result) for result in self.against), (self.source, self.result)]
        fooled = [{r.index for r in result.records if r.status == "fooled"} for _, result in sources]
        others = [set().union(*(each for at, each in enumerate(fooled) if at != own)) for own in range(len(fooled))]
        return tuple(
            Found(name, len(mine), len(mine - rest), result.robust)
            for (name, result), mine, rest in zip(sources, fooled, others, strict=True)
        )

    @property
    def new(self) -> tuple[int, ...]:
        """Images that only the given examples fool."""
        known = {r.index for result in self.against for r in result.records if r.status != "robust"}
        return tuple(index for index in self.fooled if index not in known)

    def json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "source": self.source,
            "model": self.result.job.model,
            "threat": self.result.job.threat,
            "data": self.result.job.data,
            "n": self.result.n,
            "given": len(self.given),
            "fooled": len(self.fooled),
            "largest": self.largest,
            "faults": {name: list(rows) for name, rows in self.faults.items()},
            "refuted": self.refuted,
            "lost_at_8_bits": list(self.lost_by_rounding),
            "clean": self.result.clean.json(),
            "robust": self.result.robust.json(),
            "worst_case": self.worst_case.json(),
            "found": [{**each._asdict(), "robust": each.robust.json()} for each in self.contributions],
            "new": list(self.new) if self.against else None,
            "doubts": list(self.result.doubts),
            "run": str(self.result.folder) if self.result.folder else None,
        }


def check_mergeable(runs: Sequence[Result], result: Result) -> None:
    """Refuse runs of another model, budget or other images."""
    for run in runs:
        name = f"run {run.job.key[:8]}"
        if run.job.weights.partition(" ")[0] != result.job.weights.partition(" ")[0]:
            raise UsageError(f"{name} is of another model ({run.job.model}): verify the examples on that one")
        if run.job.threat != result.job.threat:
            raise UsageError(f"{name} is under {run.job.threat}, the examples under {result.job.threat}: give --threat")
        if not same_images(run, result):
            raise UsageError(f"{name} is on other images ({run.job.data}, n = {run.n}): give the same --data and rows")
