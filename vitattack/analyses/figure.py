"""Figures of analyses as plain values: a few shapes that `report/plots` draws and findings are stored with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

Values = tuple[float | None, ...]


@dataclass(frozen=True)
class Series:
    """Points by x, with their intervals if they have any; a `reference` is published or expected, and drawn thin."""

    name: str
    x: tuple[float, ...]
    y: Values
    low: Values = ()
    high: Values = ()
    reference: bool = False


@dataclass(frozen=True)
class Curves:
    """Lines over one axis, or points alone; `labels` name single points. Shares are in [0,1], drawn in percent."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log_x: bool = False
    log_y: bool = False
    percent: bool = False
    joined: bool = True
    labels: tuple[tuple[float, float, str], ...] = ()
    x_texts: tuple[str, ...] = ()  # in place of the numbers of the first series


@dataclass(frozen=True)
class Bars:
    """A group of bars for each name, one bar for each series (whose x is the place in `groups`)."""

    title: str
    y_label: str
    groups: tuple[str, ...]
    series: tuple[Series, ...]
    percent: bool = False


@dataclass(frozen=True)
class Heat:
    """A matrix of values in colours, with texts in the cells if there are any."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[Values, ...]
    row_label: str = ""
    column_label: str = ""
    low: float | None = None
    high: float | None = None
    texts: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Pictures:
    """Images in rows and columns, each a PNG in base64; an empty text leaves a place free."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    images: tuple[tuple[str, ...], ...]


Figure = Curves | Bars | Heat | Pictures
SHAPES: dict[str, type[Figure]] = {shape.__name__: shape for shape in (Curves, Bars, Heat, Pictures)}


def to_json(figure: Figure) -> dict[str, Any]:
    return {"shape": type(figure).__name__, **asdict(figure)}


def from_json(content: Mapping[str, Any]) -> Figure:
    """A figure as `to_json` gave it."""
    values = {name: _tuples(value) for name, value in content.items() if name != "shape"}
    if "series" in values:
        values["series"] = tuple(Series(**each) for each in values["series"])
    return SHAPES[content["shape"]](**values)


def _tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_tuples, value))
    if isinstance(value, dict):
        return {name: _tuples(inner) for name, inner in value.items()}
    return value
