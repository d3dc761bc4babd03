"""Figures of analyses: a panel for each, one below the other or side by side."""

from __future__ import annotations

import base64
import io
import math
from typing import TYPE_CHECKING, Any, Literal

from vitattack.analyses.figure import Bars, Curves, Figure, Heat, Pictures, Series
from vitattack.analyses.findings import Findings
from vitattack.core.errors import UsageError
from vitattack.core.words import on_terminal
from vitattack.report.plots.paper import COLOURS, WIDTHS, line_style, paper_style
from vitattack.report.plots.values import Plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Sheet

MOST_PANELS = 24
LONGEST_NAME = 60
REFERENCE: dict[str, Any] = {"color": "#777777", "linewidth": 0.9, "linestyle": (0, (1, 1)), "zorder": 1}


def plot_of(findings: Findings, columns: int = 1) -> Plot:
    """All figures of an analysis on one sheet."""
    if not findings.figures:
        raise UsageError(f"{findings.analysis} has no figure: drop --plot")
    with paper_style():
        return Plot(sheet(findings.figures, 2 if columns == 2 else 1), findings.analysis, len(findings.figures))


def sheet(figures: tuple[Figure, ...], columns: Literal[1, 2] = 1) -> Sheet:
    """Panels in the width of one or two columns of a paper; several take both."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Sheet

    if len(figures) > MOST_PANELS:
        raise UsageError(f"{len(figures)} panels are too many for one figure: name fewer models")
    wide = any(isinstance(figure, Pictures) for figure in figures)
    columns = 2 if len(figures) > 1 or wide else columns
    across = 1 if wide else min(columns, len(figures))
    width = WIDTHS[columns] / across
    rows = [figures[at : at + across] for at in range(0, len(figures), across)]
    heights = [max(_height(figure, width) for figure in row) for row in rows]
    whole = Sheet(figsize=(WIDTHS[columns], sum(heights)), layout="constrained")
    FigureCanvasAgg(whole)
    panels = whole.subfigures(len(rows), across, squeeze=False, height_ratios=heights)
    for panel, figure in zip(panels.flat, figures, strict=False):
        panel.suptitle(_short(figure.title), fontsize=7.5)
        _draw(figure, panel, width)
    return whole


def _height(figure: Figure, width: float) -> float:
    match figure:
        case Curves():
            return 0.4 + 0.6 * width + 0.13 * _legend_rows(figure.series, width)
        case Bars():
            return 0.7 + 0.45 * width + 0.13 * _legend_rows(figure.series, width)
        case Heat():
            return 0.5 + max(0.9, (width - 0.9) * min(1.2, len(figure.rows) / max(1, len(figure.columns))))
        case Pictures():
            return 0.4 + len(figure.rows) * (width - 0.6) / max(4, len(figure.columns))


def _draw(figure: Figure, panel: Any, width: float) -> None:
    match figure:
        case Curves():
            _curves(figure, panel, width)
        case Bars():
            _bars(figure, panel, width)
        case Heat():
            _heat(figure, panel)
        case Pictures():
            _pictures(figure, panel)


def _curves(figure: Curves, panel: Any, width: float) -> None:
    axes = panel.subplots()
    scale = 100 if figure.percent else 1
    own = 0
    for series in figure.series:
        style: dict[str, Any] = dict(REFERENCE) if series.reference else line_style(own)
        own += not series.reference
        marker = "" if series.reference and figure.joined else "s" if series.reference else "o"
        many = len(series.x) > 40
        style |= {"label": _short(series.name), "marker": "" if many and figure.joined else marker, "markersize": 2.5}
        if not figure.joined:
            style["linestyle"] = "none"
        y = [math.nan if value is None else scale * value for value in series.y]
        if series.low:
            axes.errorbar(series.x, y, yerr=_errors(series, scale), capsize=1.5, elinewidth=0.7, **style)
        else:
            axes.plot(series.x, y, **style)
    for x, value, text in figure.labels:
        axes.annotate(_short(text), (x, scale * value), xytext=(3, 2), textcoords="offset points", fontsize=5.5)
    if figure.log_x:
        axes.set_xscale("symlog" if any(x <= 0 for s in figure.series for x in s.x) else "log")
    if figure.log_y:
        axes.set_yscale("log")
    if figure.x_texts:
        axes.set_xticks(figure.series[0].x, figure.x_texts)
    elif figure.x_label.startswith("eps (linf"):
        _eps_ticks(axes, max(x for series in figure.series for x in series.x))
    if figure.percent:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(figure.x_label)
    axes.set_ylabel(figure.y_label + (", %" if figure.percent else ""))
    _legend(panel, axes, figure.series, width)


def _errors(series: Series, scale: float) -> list[list[float]]:
    ends = zip(series.y, series.low, series.high, strict=True)
    known = [(math.nan,) * 3 if None in each else each for each in ends]
    return [[scale * abs(y - low) for y, low, _ in known], [scale * abs(high - y) for y, _, high in known]]  # type: ignore[operator]


def _bars(figure: Bars, panel: Any, width: float) -> None:
    axes = panel.subplots()
    scale = 100 if figure.percent else 1
    each = 0.8 / max(1, len(figure.series))
    for at, series in enumerate(figure.series):
        places = [x + (at - (len(figure.series) - 1) / 2) * each for x in series.x]
        y = [math.nan if value is None else scale * value for value in series.y]
        style: dict[str, Any] = {"color": "#b9bec3" if series.reference else COLOURS[at % len(COLOURS)]}
        error = {"yerr": _errors(series, scale), "error_kw": {"linewidth": 0.7}} if series.low else {}
        axes.bar(places, y, each, label=_short(series.name), **style, **error)
    slanted = sum(map(len, figure.groups)) > 12 * width
    axes.set_xticks(
        range(len(figure.groups)),
        [_short(name) for name in figure.groups],
        rotation=40 if slanted else 0,
        ha="right" if slanted else "center",
    )
    axes.set_ylabel(figure.y_label + (", %" if figure.percent else ""))
    _legend(panel, axes, figure.series, width)


def _heat(figure: Heat, panel: Any) -> None:
    axes = panel.subplots()
    values = [[math.nan if value is None else value for value in row] for row in figure.values]
    image = axes.imshow(values, cmap="viridis", vmin=figure.low, vmax=figure.high, aspect="auto")
    for y, row in enumerate(figure.texts):
        for x, text in enumerate(row):
            bright = image.norm(values[y][x]) > 0.6
            axes.text(x, y, text, ha="center", va="center", fontsize=5.5, color="black" if bright else "white")
    for names, set_ticks in ((figure.columns, axes.set_xticks), (figure.rows, axes.set_yticks)):
        step = max(1, math.ceil(len(names) / 20))
        set_ticks(range(0, len(names), step), [_short(name) for name in names[::step]])
    axes.set_xlabel(figure.column_label)
    axes.set_ylabel(figure.row_label)
    axes.grid(visible=False)
    panel.colorbar(image, ax=axes, fraction=0.05)


def _pictures(figure: Pictures, panel: Any) -> None:
    from matplotlib.image import imread

    grid = panel.subplots(len(figure.rows), max(4, len(figure.columns)), squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for y, (name, images) in enumerate(zip(figure.rows, figure.images, strict=True)):
        for x, (head, image) in enumerate(zip(figure.columns, images, strict=True)):
            axes = grid[y, x]
            if image:
                axes.imshow(imread(io.BytesIO(base64.b64decode(image)), format="png"), interpolation="nearest")
            if y == 0:
                axes.set_title(_short(head).replace(", ", ",\n"), fontsize=6)
            if x == 0 and name:
                axes.text(-0.08, 0.5, _short(name), transform=axes.transAxes, ha="right", va="center", fontsize=6)


def _legend_rows(series: tuple[Series, ...], width: float) -> int:
    return math.ceil(len(series) / _legend_columns(series, width)) if series else 0


def _legend_columns(series: tuple[Series, ...], width: float) -> int:
    longest = max((min(len(each.name), LONGEST_NAME) for each in series), default=1)
    return max(1, min(4, len(series), int(width / (0.35 + 0.055 * longest))))


def _legend(panel: Any, axes: Axes, series: tuple[Series, ...], width: float) -> None:
    if len(series) > 1 or (series and series[0].name):
        panel.legend(
            *axes.get_legend_handles_labels(), loc="outside lower center", ncols=_legend_columns(series, width)
        )


def _eps_ticks(axes: Axes, largest: float) -> None:
    """Ticks at whole steps of 8 bits."""
    steps = round(largest * 255)
    each = next(step for step in (1, 2, 4, 8, 16, 32, 64) if steps / step <= 6 or step == 64)
    places = range(0, steps + 1, each)
    axes.set_xticks([place / 255 for place in places], [f"{place}/255" if place else "0" for place in places])


def _short(text: str, longest: int = LONGEST_NAME) -> str:
    line = " ".join(on_terminal(text).split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
