"""One finished run in a form that is small: its numbers, its columns, and everything said about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitattack.records.job import Job
from vitattack.records.report_section import Section
from vitattack.records.result import Result, label
from vitattack.records.stats import Accuracy, Verdict
from vitattack.report.overview.samples import Samples


@dataclass(frozen=True)
class ShownRun:
    """A finished run without its records, which take a hundred times the memory of columns."""

    job: Job
    clean: Accuracy
    robust: Accuracy
    forwards: float  # mean per attacked sample
    backwards: float
    seconds: float
    doubts: tuple[str, ...]
    sections: tuple[Section, ...]
    provenance: Mapping[str, Any]
    folder: Path
    draws: int | None
    model: Mapping[str, Any]  # where its weights came from, and how it was built
    samples: Samples = field(repr=False)
    verdicts: Mapping[int, Verdict] = field(repr=False)

    @classmethod
    def of(cls, result: Result, folder: Path, model: Mapping[str, Any]) -> ShownRun:
        forwards, backwards = result.mean_passes
        return cls(
            job=result.job,
            clean=result.clean,
            robust=result.robust,
            forwards=forwards,
            backwards=backwards,
            seconds=result.seconds,
            doubts=result.doubts,
            sections=result.sections,
            provenance=result.provenance,
            folder=folder,
            draws=result.draws,
            model=model,
            samples=Samples.of(result.records),
            verdicts={record.index: Verdict.of(record) for record in result.records},
        )

    @property
    def n(self) -> int:
        return self.robust.n

    @property
    def attack(self) -> str:
        """The name of the attack in tables."""
        return label(self.job.attack)

    def section(self, name: str) -> Section | None:
        return next((section for section in self.sections if section.name == name), None)

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages by number, where the stored counts show that the names are in that order."""
        section = self.section("stages")
        if section is None:
            return ()
        stage = self.samples.stage[self.samples.fooled]
        counted = [int((stage == number).sum()) for number in range(len(section.content))]
        return tuple(section.content) if counted == [*section.content.values()] else ()
