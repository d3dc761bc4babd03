"""How large the successes of a run look, from its records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from vitattack.records.record import SampleRecord


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
