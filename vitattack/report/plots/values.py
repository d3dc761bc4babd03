"""Figures of values in memory, as notebooks show them."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vitattack.core.errors import UsageError
from vitattack.core.registry import did_you_mean
from vitattack.records.result import Evaluation
from vitattack.report.overview.attachments import Attachments
from vitattack.report.overview.figures import figures
from vitattack.report.overview.kinds import KINDS
from vitattack.report.overview.overview import Overview
from vitattack.report.overview.run import ShownRun
from vitattack.report.plots.draw import sheet
from vitattack.report.plots.paper import check_plot, paper_style, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

UNSAVED = Path("unsaved")


@dataclass(frozen=True, repr=False)
class Plot:
    """A figure that notebooks show, and `save` writes as for a paper."""

    figure: Figure
    kind: str
    panels: int

    def save(self, path: str | Path) -> None:
        """Write FILE.pdf, .svg or .png, with its fonts embedded."""
        check_plot(str(path))
        save(self.figure, Path(path))

    def _repr_png_(self) -> bytes:
        stream = io.BytesIO()
        with paper_style():
            self.figure.savefig(stream, format="png", dpi=150)
        return stream.getvalue()

    def __repr__(self) -> str:
        return f"Plot({self.kind}, {self.panels} panel{'s' * (self.panels > 1)})"


def plot_of(evaluation: Evaluation, kind: str, columns: Literal[1, 2], titles: bool) -> Plot:
    """A figure of one kind, of all results of an evaluation."""
    if kind not in KINDS:
        raise UsageError(did_you_mean("kind of figure", kind, KINDS))
    runs = tuple(ShownRun.of(result, result.folder or UNSAVED, {}) for result in evaluation.results)
    every = figures(Overview(runs, ()), Attachments())
    found = [figure for figure in every if figure.head.kind == kind]
    if not found:
        there = ", ".join(dict.fromkeys(figure.head.kind for figure in every)) or "none"
        raise UsageError(f"this evaluation has nothing for '{kind}': kinds it has: {there}")
    with paper_style():
        return Plot(sheet(found, columns, titles=titles), kind, len(found))
