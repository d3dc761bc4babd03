"""A question to the store and the zoo: what `AnalysisRun` is to models, without torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitattack.analyses.base import Analysis
from vitattack.analyses.catalogue import ANALYSES
from vitattack.analyses.figure import Figure
from vitattack.analyses.findings import Findings, Row
from vitattack.analyses.landscape.points import Point, points
from vitattack.analyses.landscape.questions import OfTheStore
from vitattack.analyses.words import bound, budget_of
from vitattack.core.errors import UsageError
from vitattack.core.shown import made_by
from vitattack.core.table import Table
from vitattack.data.rows import split_rows


@dataclass(frozen=True)
class StoreRun:
    """Where to look, and for what."""

    name: str
    analysis: Analysis
    root: Path
    data: str
    threat: str
    models: tuple[str, ...]

    def points(self, *metrics: str) -> list[Point]:
        """The models that have all of these metrics; refused if there are none."""
        assert isinstance(self.analysis, OfTheStore)
        found = points(self.root, self.data, self.threat, self.models, metrics, published=self.analysis.published)
        if not found:
            raise UsageError(
                f"'{self.root}' holds no finished run on {self.data} under {self.threat}"
                f"{', and the zoo no such numbers' if self.analysis.published else ''}: run vitattack eval, or ask for others"
            )
        return found

    def findings(
        self, rows: Sequence[Row], tables: Sequence[Table], figures: Sequence[Figure], remarks: Iterable[str]
    ) -> Findings:
        """What was found; nothing of it is kept, since it takes no time."""
        return Findings(
            self.name,
            self.analysis.settings(),
            tuple(dict.fromkeys(str(row["model"]) for row in rows)),
            self.data,
            self.threat,
            len(rows),
            tuple(rows),
            tuple(tables),
            tuple(figures),
            tuple(remarks),
        )


def ask_store(
    name: str, models: Sequence[str], root: Path, data: str, threat: str | None, parameters: Mapping[str, Any]
) -> Findings:
    """An analysis that opens no model."""
    kind = ANALYSES[name]
    plain, rows = split_rows(data)
    if rows is not None:
        raise UsageError(f"{name} is of whole data sets: drop [{rows}] or --limit")
    budget = budget_of(name, kind, threat)
    if "," in budget:
        raise UsageError(f"{name} is of one budget: give one --threat")
    analysis = bound(name, kind, parameters)
    findings: Findings = made_by(kind.work, analysis, StoreRun(name, analysis, root, plain, budget, tuple(models)))
    return findings
