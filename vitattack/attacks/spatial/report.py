"""Report of a run over a grid of spatial transforms: accuracies under shifts alone and rotations alone, and fooling counts."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vitattack.records import stats
from vitattack.records.record import SampleRecord
from vitattack.records.report_section import Run, Section
from vitattack.records.result import Result, label
from vitattack.records.stats import Accuracy


@dataclass(frozen=True)
class SpatialReport:
    """Accuracies over all samples of one run; for the full grid also its size and the median number of fooling transforms."""

    shifts: Accuracy
    rotations: Accuracy
    transforms: int | None
    median_fooling: float | None

    @property
    def note(self) -> str | None:
        if self.transforms is None or self.median_fooling is None:
            return None
        return f"the median attacked image is fooled by {self.median_fooling:g} of {self.transforms} transforms"

    def json(self) -> dict[str, Any]:
        return {
            "shifts": self.shifts.json(),
            "rotations": self.rotations.json(),
            "transforms": self.transforms,
            "median_fooling": self.median_fooling,
        }


def spatial_report(result: Run | Result) -> SpatialReport | None:
    """The report of a run whose outermost attack is the grid; None for other runs.

    As a stage of `worst` or `restarts` the grid does not meet every sample, so its evidence says nothing of the run.
    """
    attacked = [r for r in result.records if r.clean == r.label]
    if not attacked or not all("fooled_by_shift" in r.evidence and "stage" not in r.evidence for r in attacked):
        return None
    counts = [int(r.evidence["fooling"]) for r in attacked if "fooling" in r.evidence]
    return SpatialReport(
        shifts=_accuracy_under(result, attacked, "fooled_by_shift"),
        rotations=_accuracy_under(result, attacked, "fooled_by_rotation"),
        transforms=int(attacked[0].evidence["transforms"]) if counts else None,
        median_fooling=statistics.median(counts) if counts else None,
    )


def spatial_section(run: Run) -> tuple[Section, ...]:
    """The section with the report, if there is one."""
    report = spatial_report(run)
    if report is None:
        return ()
    rows = (("shifts only", report.shifts), ("rotations only", report.rotations))
    notes = (f"{label(run.job.attack)}: {report.note}",) if report.note else ()
    return (Section("spatial", report.json(), rows=rows, notes=notes),)


def _accuracy_under(result: Run | Result, attacked: list[SampleRecord], name: str) -> Accuracy:
    """Accuracy under some of the transforms. As in the headline, an unconfirmed success leaves its sample robust.

    The judge gets one candidate per sample. Successes of other transforms count only if it is confirmed, so neither
    accuracy is ever below that of the whole grid.
    """

    def count(fooled: Callable[[SampleRecord], bool], invalid: bool) -> int:
        return sum(not fooled(r) and (invalid or r.status != "invalid") for r in attacked)

    return stats.share(
        count(lambda r: bool(r.evidence[name]) and r.status == "fooled", False),
        len(result.records),
        least=count(lambda r: bool(r.evidence[name]) and (r.status == "fooled" or r.fragile), False),
        most=count(lambda r: bool(r.evidence[name]) and r.status == "fooled", True),
    )
