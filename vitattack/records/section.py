"""Sections of a result: what an attack shows beside its headline, computed once from the records of a finished run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from vitattack.core.table import Table
from vitattack.records.job import Job
from vitattack.records.record import SampleRecord
from vitattack.records.stats import Accuracy


class Run(NamedTuple):
    """A finished run as its attack sees it: its texts, the last record of every sample, what was learned beforehand."""

    job: Job
    records: Sequence[SampleRecord]
    learned: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Section:
    """A named part of a result. Its content stands in the JSON under its name, the rest in the printed report."""

    name: str
    content: Mapping[str, Any]
    rows: tuple[tuple[str, Accuracy], ...] = ()  # accuracies that stand below the row of the attack
    notes: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()  # tables of one title from several results are printed as one
    doubts: tuple[str, ...] = ()  # among those of the result, too

    def stored(self) -> dict[str, Any]:
        """The printed part as plain data."""
        return {name: value for name, value in asdict(self).items() if name != "content"}

    @classmethod
    def restored(cls, data: Mapping[str, Any], result: Mapping[str, Any]) -> Section:
        """The section that `stored` wrote down, its content from the JSON of the result.

        Raises TypeError, KeyError or ValueError for anything else.
        """
        return cls(
            name=str(data["name"]),
            content=dict(result[data["name"]]),
            rows=tuple((str(name), Accuracy(*accuracy)) for name, accuracy in data["rows"]),
            notes=tuple(map(str, data["notes"])),
            tables=tuple(Table(**table) for table in data["tables"]),
            doubts=tuple(map(str, data["doubts"])),
        )
