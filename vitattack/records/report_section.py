"""Sections: what an attack adds to a result beside the headline number, computed once from the records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from vitattack.core.table import Table
from vitattack.records.job import Job
from vitattack.records.record import SampleRecord
from vitattack.records.stats import Accuracy

STORED_OF_TABLE = ("title", "columns", "rows", "notes", "left", "whole")  # the rest is of tables that are made anew


class Run(NamedTuple):
    """A finished run: its job, the last record of every sample, and what the attack learned beforehand."""

    job: Job
    records: Sequence[SampleRecord]
    learned: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Section:
    """A named part of a result. Its content goes into the JSON under its name, the rest into the printed report."""

    name: str
    content: Mapping[str, Any]
    rows: tuple[tuple[str, Accuracy], ...] = ()  # accuracies listed below the row of the attack
    notes: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()  # tables of one title from several results are printed as one
    doubts: tuple[str, ...] = ()  # also listed among those of the result

    def stored(self) -> dict[str, Any]:
        """The printed part as plain data."""
        plain = {name: value for name, value in asdict(self).items() if name != "content"}
        return {**plain, "tables": [{name: table[name] for name in STORED_OF_TABLE} for table in plain["tables"]]}

    @classmethod
    def restored(cls, data: Mapping[str, Any], result: Mapping[str, Any]) -> Section:
        """The section from the output of `stored`, with its content from the JSON of the result.

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
