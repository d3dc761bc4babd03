"""Accuracies laid out in rows and columns, with heads over heads and the best numbers marked."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from vitattack.core.percent import span
from vitattack.core.table import Table
from vitattack.records.stats import Accuracy

T = TypeVar("T")
Place = tuple[tuple[str, ...], tuple[str, ...]]  # the texts of a row, and of a column
WIDEST_NAME, WIDEST_NAME_NARROW = 40, 17
NARROW = 8  # characters of a column where there is little room


@dataclass(frozen=True)
class Layout(Generic[T]):
    """Numbers by their text on each axis; axes are model, attack, threat and seed."""

    numbers: Sequence[T]
    rows: Sequence[str]
    columns: Sequence[str]
    axes: Mapping[str, Callable[[T], str]]
    accuracy: Callable[[T], Accuracy | None]

    def table(
        self, title: str, notes: Sequence[str], cell: Callable[[T | None], str], *, narrow: bool = False
    ) -> Table:
        """The table with `cell` in every place; with `narrow`, heads of several lines."""
        places = self._places()
        names = list(dict.fromkeys(row for row, _ in places))
        heads = list(dict.fromkeys(column for _, column in places))
        hidden = self._constant(heads)
        columns = [self._head(head, hidden) for head in heads]
        rows = [(*name, *(cell(places.get((name, head))) for head in heads)) for name in names]
        best = self._best(places)
        marked = frozenset(
            (at, len(self.rows) + to)
            for at, name in enumerate(names)
            for to, head in enumerate(heads)
            if (name, head) in best
        )
        return Table(
            title,
            (*self.rows, *(wrapped(column, NARROW) if narrow else column for column in columns)),
            rows,
            notes,
            left=len(self.rows),
            groups=self._groups(heads, hidden),
            best=marked,
        )

    def _places(self) -> dict[Place, T]:
        places: dict[Place, T] = {}
        for number in self.numbers:
            row, column = (tuple(self.axes[axis](number) for axis in axes) for axes in (self.rows, self.columns))
            places.setdefault((row, column), number)
        return places

    def _constant(self, heads: Sequence[tuple[str, ...]]) -> set[str]:
        """Axes of one value, which appears in the title."""
        found = {
            axis for place, axis in enumerate(self.columns) if len({head[place] for head in heads if head[place]}) < 2
        }
        return found if found < set(self.columns) else set()

    def _head(self, head: Sequence[str], hidden: set[str]) -> str:
        """Name of a column, without axes that are constant."""
        shown = [value for axis, value in zip(self.columns, head, strict=True) if value and axis not in hidden]
        return " ".join(shown) or next((value for value in head if value), "")

    def _groups(self, heads: Sequence[tuple[str, ...]], hidden: set[str]) -> tuple[tuple[str, str], ...]:
        """A head over the heads of columns that share the first of several axes."""
        shown = [place for place, axis in enumerate(self.columns) if axis not in hidden]
        if len(shown) < 2:
            return ()
        pairs = []
        for head in heads:
            first, rest = head[shown[0]], " ".join(head[place] for place in shown[1:] if head[place])
            pairs.append((first, rest) if rest else ("", first))
        return tuple(pairs)

    def _best(self, places: Mapping[Place, T]) -> set[Place]:
        """Places of the most robust models under each attack and budget, where others are less robust."""
        rivals: dict[tuple[str, ...], list[tuple[float, Place]]] = {}
        others = [axis for axis in self.axes if axis != "model"]
        for place, number in places.items():
            accuracy = self.accuracy(number)
            if accuracy is not None:
                key = tuple(self.axes[axis](number) for axis in others)
                rivals.setdefault(key, []).append((accuracy.accuracy, place))
        found = set()
        for each in rivals.values():
            top, least = (pick(share for share, _ in each) for pick in (max, min))
            if top > least:
                found |= {place for share, place in each if share == top}
        return found


def measured_text(accuracy: Accuracy, *, interval: bool = True, narrow: bool = False) -> str:
    """An accuracy in a cell; where it is narrow, the interval stands below, in whole percent rounded outwards."""
    number = f"{100 * accuracy.accuracy:.1f}"
    if not interval:
        return number
    if narrow:
        return f"{number}\n{math.floor(100 * accuracy.low + 1e-9)}-{math.ceil(100 * accuracy.high - 1e-9)}"
    return f"{number} ({span(accuracy.low, accuracy.high, '-')})"


def wrapped(text: str, width: int) -> str:
    """A head on several lines, broken where words, options and names of parts end, or anywhere if need be."""
    loose = text
    for mark in "(,+/=:-_":
        loose = loose.replace(mark, f"{mark}\u200b")
    lines: list[str] = []
    for word in loose.replace(" ", "\u200b\u200b").split("\u200b"):
        piece = word or " "
        if lines and len(lines[-1] + piece) <= width:
            lines[-1] += piece
        else:
            lines += textwrap.wrap(piece, width) or [""] if piece.strip() else []
    return "\n".join(line.strip() for line in lines)


def fitted(wide: Table, narrow: Table, width: int) -> list[Table]:
    """The wide table where it fits, else the narrow one, in pieces where even that does not fit."""
    whole = pieces(wide, width)
    return whole if len(whole) == 1 else pieces(narrow, width, WIDEST_NAME_NARROW)


def pieces(table: Table, width: int, widest_name: int = WIDEST_NAME) -> list[Table]:
    """A table split between columns into pieces that fit; each repeats the row names, the last one has the notes."""
    columns = list(zip(table.columns, *table.rows, strict=True))
    widths = [max(len(line) for cell in column for line in cell.splitlines() or [""]) + 2 for column in columns]
    names = sum(min(size, widest_name) for size in widths[: table.left])
    groups: list[list[int]] = [[]]
    used = 0
    for place in range(table.left, len(columns)):
        if groups[-1] and used + widths[place] > width - names:
            groups.append([])
            used = 0
        groups[-1].append(place)
        used += widths[place]
    if len(groups) == 1:
        return [table]
    found = []
    for number, group in enumerate(groups):
        places = [*range(table.left), *group]
        title = f"{table.title} ({number + 1} of {len(groups)})"
        notes = table.notes if number + 1 == len(groups) else ()
        found.append(replace(table.part(places), title=title, notes=notes))
    return found
