"""Figures of an overview drawn with matplotlib, a panel for each, below and beside one another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from vitattack.core.errors import UsageError
from vitattack.core.words import on_terminal
from vitattack.models.attention.saturation import SATURATED_GAP, UNDERFLOW_GAP
from vitattack.report.overview.figures import Figure, Histograms, Intervals, Lines, Matrix, Stages
from vitattack.report.plots.paper import COLOURS, WIDTHS, line_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Sheet
    from matplotlib.figure import SubFigure

MOST_PANELS = 12
LONGEST_NAME = 44  # characters of a name in a legend or on an axis


def sheet(figures: Sequence[Figure], columns: Literal[1, 2] = 1, *, titles: bool = True) -> Sheet:
    """All figures on one sheet of the width of one or two columns; call it inside `paper_style`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Sheet

    if len(figures) > MOST_PANELS:
        raise UsageError(f"{len(figures)} figures of this kind: name fewer runs, {MOST_PANELS} panels are the most")
    across = min(columns, len(figures))
    width = WIDTHS[columns] / across
    rows = [figures[at : at + across] for at in range(0, len(figures), across)]
    heights = [max(_height(figure, width) + 0.42 * titles for figure in row) for row in rows]
    whole = Sheet(figsize=(WIDTHS[columns], sum(heights)), layout="constrained")
    FigureCanvasAgg(whole)
    panels = whole.subfigures(len(rows), across, squeeze=False, height_ratios=heights)
    for panel, figure in zip(panels.flat, figures, strict=False):
        if titles:
            panel.suptitle(f"{_short(figure.head.title, 60)}\n{_short(figure.head.about, 60)}", fontsize=7.5)
        _draw(figure, panel, width)
    return whole


def _height(figure: Figure, width: float) -> float:
    """Inches that a panel needs."""
    match figure:
        case Lines():
            return 0.62 * width + 0.13 * math.ceil(len(figure.curves) / _legend_columns(figure, width))
        case Intervals():
            return 0.45 + 0.17 * len(figure.rows)
        case Stages():
            return 0.4 + 0.27 * max(3, len(figure.stages))
        case Matrix():
            return 0.75 + 0.24 * len(figure.rows)
        case Histograms():
            return 0.3 + 0.95 * math.ceil(len(figure.blocks) / _blocks_across(width))


def _draw(figure: Figure, panel: SubFigure, width: float) -> None:
    match figure:
        case Lines():
            _lines(figure, panel, width)
        case Intervals():
            _intervals(figure, panel)
        case Stages():
            _stages(figure, panel)
        case Matrix():
            _matrix(figure, panel, width)
        case Histograms():
            _histograms(figure, panel, width)


def _lines(figure: Lines, panel: SubFigure, width: float) -> None:
    axes = panel.subplots()
    for at, (name, curve) in enumerate(zip(figure.names, figure.curves, strict=True)):
        share = [100 * y for y in curve.y]
        style = {**line_style(at), "label": _short(name)}
        if figure.steps:
            axes.step(curve.x, share, where="post", **style)
        elif curve.low:
            below, above = (
                [100 * abs(a - b) for a, b in zip(end, curve.y, strict=True)] for end in (curve.low, curve.high)
            )
            axes.errorbar(curve.x, share, yerr=[below, above], marker="o", markersize=2.5, capsize=1.5, **style)
        else:
            axes.plot(curve.x, share, **style)
    if figure.logarithmic:
        axes.set_xscale("log")
        axes.set_xlim(left=1)
        _plain_numbers(axes)
    elif figure.head.kind in ("budget", "distance"):
        _eps_ticks(axes, max(x for curve in figure.curves for x in curve.x))
    axes.set_ylim(0, 100)
    axes.set_xlabel(figure.x_label)
    axes.set_ylabel("accuracy, %")
    panel.legend(loc="outside lower center", ncols=_legend_columns(figure, width))


def _legend_columns(figure: Lines, width: float) -> int:
    longest = max((min(len(name), LONGEST_NAME) for name in figure.names), default=1)
    return max(1, min(4, len(figure.curves), int(width / (0.35 + 0.055 * longest))))


def _plain_numbers(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _eps_ticks(axes: Axes, largest: float) -> None:
    """Ticks at whole steps of 8 bits where the budgets are as small as that."""
    steps = largest * 255
    if steps > 64:
        return
    each = next(step for step in (1, 2, 4, 8, 16) if steps / step <= 5)
    places = range(0, math.floor(steps + 1e-6) + 1, each)
    axes.set_xticks([place / 255 for place in places], [f"{place}/255" if place else "0" for place in places])


def _intervals(figure: Intervals, panel: SubFigure) -> None:
    axes = panel.subplots()
    places = [*range(len(figure.rows))]
    shares = [100 * accuracy.accuracy for _, accuracy in figure.rows]
    below = [100 * (accuracy.accuracy - accuracy.low) for _, accuracy in figure.rows]
    above = [100 * (accuracy.high - accuracy.accuracy) for _, accuracy in figure.rows]
    axes.errorbar(shares, places, xerr=[below, above], fmt="o", markersize=3, capsize=2, color=COLOURS[0])
    axes.set_yticks(places, [_short(name) for name, _ in figure.rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("accuracy, % (95 % interval)")


def _stages(figure: Stages, panel: SubFigure) -> None:
    counts = any(stage.passes is not None for stage in figure.stages)
    names = [_short(stage.name, 24) for stage in figure.stages]
    places = range(len(names))
    left, *right = panel.subplots(1, 1 + counts, squeeze=False, sharey=True)[0]
    _bars(left, places, [stage.broke for stage in figure.stages], COLOURS[1], "images broken")
    left.set_yticks([*places], names)
    left.set_ylim(max(3, len(names)) - 0.5, -0.5)
    for axes in right:
        _bars(axes, places, [stage.passes or 0 for stage in figure.stages], COLOURS[0], "passes")


def _bars(axes: Axes, places: Sequence[int], values: Sequence[int], colour: str, label: str) -> None:
    bars = axes.barh([*places], [*values], height=0.6, color=colour)
    axes.bar_label(bars, [f"{value:,}" for value in values], padding=2, fontsize=6)
    axes.set_xlim(0, 1.3 * max(1, *values))
    axes.set_xticks([])
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    axes.set_xlabel(label)


def _matrix(figure: Matrix, panel: SubFigure, width: float) -> None:
    axes = panel.subplots()
    values = [[math.nan if value is None else value for value in row] for row in figure.values]
    known = [value for row in figure.values for value in row if value is not None]
    top = 1.0 if figure.head.kind == "transfer" else max(known, default=1.0) or 1.0
    axes.imshow(values, cmap="Blues", vmin=0, vmax=1.3 * top, aspect="auto")
    for y, row in enumerate(figure.texts):
        for x, text in enumerate(row):
            axes.text(x, y, text, ha="center", va="center", fontsize=6)
    longest = int(width / max(1, len(figure.columns)) / 0.06)
    axes.set_xticks(range(len(figure.columns)), [_short(name, max(4, longest)) for name in figure.columns])
    axes.set_yticks(range(len(figure.rows)), [_short(name, 24) for name in figure.rows])
    axes.set_xlabel(figure.column_label)
    axes.set_ylabel(figure.row_label)
    axes.grid(visible=False)


def _histograms(figure: Histograms, panel: SubFigure, width: float) -> None:
    across = _blocks_across(width)
    grid = panel.subplots(math.ceil(len(figure.blocks) / across), across, squeeze=False, sharex=True)
    for axes, block in zip(grid.flat, figure.blocks, strict=False):
        axes.stairs(block.counts, figure.edges, fill=True, color=COLOURS[0])
        axes.set_xscale("log")
        axes.set_xlim(figure.edges[0], figure.edges[-1])
        for gap, colour in ((SATURATED_GAP, COLOURS[4]), (UNDERFLOW_GAP, COLOURS[1])):
            axes.axvline(gap, color=colour, linewidth=0.8)
        axes.set_xticks([0.01, 1, 100], ["0.01", "1", "100"])
        axes.minorticks_off()
        axes.set_yticks([])
        axes.grid(visible=False)
        axes.set_title(f"{_short(block.block, 18)}: {block.verdict}", fontsize=6.5)
    for axes in grid.flat[len(figure.blocks) :]:
        axes.set_visible(False)
    panel.supxlabel("gap between the two highest scores", fontsize=7)


def _blocks_across(width: float) -> int:
    return max(2, int(width / 1.1))


def _short(text: str, longest: int = LONGEST_NAME) -> str:
    line = " ".join(on_terminal(text).split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
