"""Findings of an analysis: rows of numbers, tables, figures and remarks, all of them plain data that is stored as it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitattack.analyses import figure as figures
from vitattack.analyses.figure import Figure
from vitattack.core.file_hashes import Marks
from vitattack.core.shown import Shown, made_by
from vitattack.core.table import Table

if TYPE_CHECKING:
    import pandas as pd

    from vitattack.records.result import Plot

Row = Mapping[str, str | float | int | bool | None]


@dataclass(frozen=True, repr=False)
class Findings(Shown):
    """Numbers of one analysis of one or several models; `rows` holds each of them once, with what it is of."""

    analysis: str
    settings: Mapping[str, Any]
    models: tuple[str, ...]
    data: str
    threat: str
    n: int
    rows: tuple[Row, ...]
    printed: tuple[Table, ...]
    figures: tuple[Figure, ...]
    remarks: tuple[str, ...] = ()  # what one sees, and doubts; printed below the tables
    provenance: Mapping[str, Any] = field(default_factory=dict)
    inputs: Marks | None = field(default=None, repr=False, compare=False)  # files read; None if they cannot be listed

    def __repr__(self) -> str:
        about = ", ".join(part for part in (*self.models, self.data, self.threat) if part)
        return f"Findings({self.analysis}, {about}, n={self.n}, {len(self.rows)} rows)"

    def tables(self) -> list[Table]:
        """The tables that the command line prints, with the remarks below the last one."""
        *most, last = self.printed
        return [*most, replace(last, notes=(*last.notes, *self.remarks))]

    def frame(self) -> pd.DataFrame:
        """A data frame with one row per number."""
        import pandas

        return pandas.DataFrame(list(self.rows))

    def plot(self, *, columns: int = 1) -> Plot:
        """The figure, as `--plot` draws it; notebooks show it, and `save` writes it."""
        plot: Plot = made_by("vitattack.report.plots.analyses:plot_of", self, columns)
        return plot

    def save_plot(self, path: str | Path) -> None:
        """Write the figure as FILE.pdf, .svg or .png."""
        self.plot().save(path)

    def json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "analysis": self.analysis,
            "settings": plain(self.settings),
            "models": list(self.models),
            "data": self.data,
            "threat": self.threat,
            "n": self.n,
            "rows": plain(self.rows),
            "remarks": list(self.remarks),
            "provenance": plain(self.provenance),
        }

    def stored(self) -> dict[str, Any]:
        """Everything, as JSON that `restored` reads."""
        tables = [{**asdict(table), "best": sorted(table.best)} for table in self.printed]
        return {**self.json(), "tables": plain(tables), "figures": plain([*map(figures.to_json, self.figures)])}


def restored(content: Mapping[str, Any]) -> Findings:
    """Findings as they were stored."""
    return Findings(
        content["analysis"],
        content["settings"],
        tuple(content["models"]),
        content["data"],
        content["threat"],
        content["n"],
        tuple(content["rows"]),
        tuple(_table(each) for each in content["tables"]),
        tuple(map(figures.from_json, content["figures"])),
        tuple(content["remarks"]),
        content["provenance"],
    )


def _table(content: Mapping[str, Any]) -> Table:
    groups = tuple((a, b) for a, b in content["groups"])
    return Table(**{**content, "groups": groups, "best": frozenset((a, b) for a, b in content["best"])})


def plain(value: Any) -> Any:
    """JSON of a value: numbers that are none, such as infinity, become null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(inner) for inner in value]
    return value
