"""Mean perceptual distances of the successes of a run, from its records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from vitattack.core.table import Table
from vitattack.records.record import SampleRecord
from vitattack.records.report_section import Run, Section
from vitattack.records.result import label

TITLE = "mean differences between fooled images and their originals"
COLUMNS = ("attack", "threat", "fooled", "l2", "linf", "SSIM", "LPIPS")


@dataclass(frozen=True)
class Appearance:
    """Mean distances over the fooled samples; LPIPS only if it was computed."""

    n: int
    l2: float
    linf: float
    ssim: float
    lpips: float | None

    def json(self) -> dict[str, float | int | str | None]:
        return {"of": "fooled", "n": self.n, "l2": self.l2, "linf": self.linf, "ssim": self.ssim, "lpips": self.lpips}


def appearance(records: Sequence[SampleRecord]) -> Appearance | None:
    """Mean distances of a run's successes; None without measurements or successes."""
    fooled = [r.evidence for r in records if r.status == "fooled" and "ssim" in r.evidence]
    if not fooled:
        return None

    def mean(name: str) -> float:
        return round(fmean(float(row[name]) for row in fooled), 6)

    return Appearance(
        len(fooled), mean("l2"), mean("linf"), mean("ssim"), mean("lpips") if "lpips" in fooled[0] else None
    )


def appearance_section(run: Run) -> tuple[Section, ...]:
    """The section with the mean distances of a run's successes."""
    means = appearance(run.records)
    if means is None:
        return ()
    lpips = "-" if means.lpips is None else f"{means.lpips:.4f}"
    figures = f"{means.l2:.3f}", f"{255 * means.linf:.2f}/255", f"{means.ssim:.4f}", lpips
    row = (label(run.job.attack), run.job.threat, str(means.n), *figures)
    return (Section("perceptual", means.json(), tables=(Table(TITLE, COLUMNS, [row], left=2),)),)
