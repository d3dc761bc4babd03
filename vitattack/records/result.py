"""What comes out of jobs: values computed from records, never stored twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitattack.attacks import stages
from vitattack.attacks.auto.report import auto_report
from vitattack.attacks.perceptual.report import appearance
from vitattack.records import stats
from vitattack.records.eps_curve import optimiser_failures
from vitattack.records.job import Job
from vitattack.records.record import SampleRecord, Status
from vitattack.records.stats import Accuracy


@dataclass(frozen=True)
class Result:
    """One finished job."""

    job: Job
    records: Sequence[SampleRecord] = field(repr=False)
    seconds: float
    doubts: tuple[str, ...]
    provenance: dict[str, Any] = field(repr=False)
    folder: Path | None = None
    learned: dict[str, Any] | None = field(default=None, repr=False)

    @property
    def n(self) -> int:
        return len(self.records)

    @property
    def clean(self) -> Accuracy:
        return stats.clean_accuracy(self.records)

    @property
    def robust(self) -> Accuracy:
        return stats.robust_accuracy(self.records)

    def count(self, status: Status) -> int:
        return Counter(r.status for r in self.records)[status]

    @property
    def fragile(self) -> int:
        return sum(r.fragile for r in self.records)

    @property
    def violations(self) -> int:
        return sum(r.violation for r in self.records)

    @property
    def mean_first_success(self) -> float | None:
        """Mean step of the first success among fooled samples."""
        steps = [r.first_fooled for r in self.records if r.status == "fooled" and r.first_fooled >= 0]
        return sum(steps) / len(steps) if steps else None

    def _referee(self) -> dict[str, Any]:
        from vitattack.attacks.aas.report import referee  # it reads results

        found = referee(self)
        return {"referee": found.json()} if found else {}

    def _spatial(self) -> dict[str, Any]:
        from vitattack.attacks.spatial.report import spatial_report  # it reads results

        found = spatial_report(self)
        return {"spatial": found.json()} if found else {}

    def json(self) -> dict[str, Any]:
        forwards, backwards = stats.mean_passes(self.records)
        return {
            "attack": self.job.attack,
            "threat": self.job.threat,
            "n": self.n,
            "clean": self.clean.json(),
            "robust": self.robust.json(),
            "clean_wrong": self.count("clean_wrong"),
            "fooled": self.count("fooled"),
            "invalid": self.count("invalid"),
            "fragile": self.fragile,
            "violations": self.violations,
            "mean_first_success": self.mean_first_success,
            "forwards": round(forwards, 3),
            "backwards": round(backwards, 3),
            "seconds": round(self.seconds, 3),
            "doubts": list(self.doubts),
            **self._referee(),
            **self._spatial(),
            **({"auto": told.json()} if (told := auto_report(self.job, self.records)) else {}),
            **({"perceptual": found.json()} if (found := appearance(self.records)) else {}),
            **({"stages": broken} if (broken := stages.broken(self.job.attack, self.records)) else {}),
            "run": str(self.folder) if self.folder else None,
        }


@dataclass(frozen=True)
class Evaluation:
    """Several attacks, under one budget or several, on one model and the same samples."""

    results: tuple[Result, ...]

    @property
    def job(self) -> Job:
        return self.results[0].job

    @property
    def finished(self) -> bool:
        """False after a shard that others have to complete: there is nothing to show yet."""
        return bool(self.results)

    @property
    def n(self) -> int:
        return self.results[0].n if self.results else 0

    @property
    def clean(self) -> Accuracy:
        return self.results[0].clean

    @property
    def threats(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(result.job.threat for result in self.results))

    def under(self, threat: str) -> Evaluation:
        """The part that was run under one budget."""
        return Evaluation(tuple(result for result in self.results if result.job.threat == threat))

    @property
    def worst_case(self) -> Accuracy:
        """The per-sample worst case over all attacks, and over all budgets where there are several."""
        return stats.worst_case([result.records for result in self.results])

    @property
    def doubts(self) -> tuple[str, ...]:
        rising = optimiser_failures([(threat, self.under(threat).worst_case) for threat in self.threats])
        return tuple(dict.fromkeys([*(doubt for result in self.results for doubt in result.doubts), *rising]))

    def paired(self) -> list[tuple[str, str, stats.Paired]]:
        """Every attack against the strongest one, on the same samples; nothing where budgets differ."""
        if len(self.threats) > 1:
            return []
        strongest = min(self.results, key=lambda r: r.robust.correct)
        return [
            (strongest.job.attack, other.job.attack, stats.mcnemar(strongest.records, other.records))
            for other in self.results
            if other is not strongest
        ]

    def _curve(self) -> dict[str, Any]:
        if len(self.threats) < 2:
            return {}
        return {"curve": [{"threat": t, "worst_case": self.under(t).worst_case.json()} for t in self.threats]}

    def json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "model": self.job.model,
            "threat": ",".join(self.threats),
            "data": self.job.data,
            "n": self.n,
            "seed": self.job.seed,
            "clean": self.clean.json(),
            "attacks": [result.json() for result in self.results],
            "worst_case": self.worst_case.json(),
            **self._curve(),
            "paired": [{"attack": a, "other": b, **p._asdict()} for a, b, p in self.paired()],
            "doubts": list(self.doubts),
            "run": str(self.results[0].folder.parent) if self.results[0].folder else None,
            "provenance": self.results[0].provenance,
        }
