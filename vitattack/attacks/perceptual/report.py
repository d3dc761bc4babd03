"""How large the successes of a run look, from its records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from vitattack.core.table import Table
from vitattack.records.record import SampleRecord
from vitattack.records.result import label
from vitattack.records.section import Run, Section

LOOKS = "how the fooled images differ from their originals (means)"
COLUMNS = ("attack", "threat", "fooled", "l2", "linf", "SSIM", "LPIPS")


@dataclass(frozen=True)
class Appearance:
    """Means over the fooled samples; LPIPS only where it was computed."""

    n: int
    l2: float
    linf: float
    ssim: float
    lpips: float | None

    def json(self) -> dict[str, float | int | str | None]:
        return {"of": "fooled", "n": self.n, "l2": self.l2, "linf": self.linf, "ssim": self.ssim, "lpips": self.lpips}


def appearance(records: Sequence[SampleRecord]) -> Appearance | None:
    """The means over a run's successes; None where the run did not measure them, or had no success."""
    fooled = [r.evidence for r in records if r.status == "fooled" and "ssim" in r.evidence]
    if not fooled:
        return None

    def mean(name: str) -> float:
        return round(fmean(float(row[name]) for row in fooled), 6)

    return Appearance(
        len(fooled), mean("l2"), mean("linf"), mean("ssim"), mean("lpips") if "lpips" in fooled[0] else None
    )


def appearance_section(run: Run) -> tuple[Section, ...]:
    """The section of a run whose successes were measured."""
    found = appearance(run.records)
    if found is None:
        return ()
    lpips = "-" if found.lpips is None else f"{found.lpips:.4f}"
    measures = f"{found.l2:.3f}", f"{255 * found.linf:.2f}/255", f"{found.ssim:.4f}", lpips
    row = (label(run.job.attack), run.job.threat, str(found.n), *measures)
    return (Section("perceptual", found.json(), tables=(Table(LOOKS, COLUMNS, [row], left=2),)),)
