"""Similarities of blocks in a matrix, as rows, a table and a figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from vitattack.analyses.figure import Heat
from vitattack.analyses.findings import Row
from vitattack.core.table import Table

MOST_COLUMNS = 12  # of a matrix in the terminal; of a larger one, neighbours alone are printed


class Entry(NamedTuple):
    """A similarity with its 95 % interval."""

    value: float
    low: float
    high: float


Entries = Sequence[Sequence[Entry | None]]


def matrix_rows(entries: Entries, measure: str, **about: str) -> list[Row]:
    """A row for each pair that is known."""
    return [
        {**about, "first": i, "second": j, measure: entry.value, "low": entry.low, "high": entry.high}
        for i, row in enumerate(entries)
        for j, entry in enumerate(row)
        if entry is not None
    ]


def matrix_table(title: str, entries: Entries, notes: Sequence[str] = ()) -> Table:
    """The matrix where it is small; else the similarity of each block to the next, with its interval."""
    width = max(len(row) for row in entries)
    if width <= MOST_COLUMNS:
        cells = [(str(at), *(_text(entry) for entry in row)) for at, row in enumerate(entries)]
        return Table(title, ("block", *map(str, range(width))), cells, tuple(notes))
    steps = [(at, entries[at][at + 1]) for at in range(min(len(entries), width) - 1)]
    cells = [(f"{at} and {at + 1}", _text(entry), _interval(entry)) for at, entry in steps]
    note = f"the whole matrix of {len(entries)} x {width} blocks is in --json, the frame and the figure"
    return Table(title, ("blocks", "value", "95 % interval"), cells, (*notes, note))


def matrix_figure(title: str, entries: Entries, rows: str = "block", columns: str = "block") -> Heat:
    values = tuple(tuple(None if entry is None else entry.value for entry in row) for row in entries)
    width = max(len(row) for row in entries)
    return Heat(
        title,
        tuple(map(str, range(len(entries)))),
        tuple(map(str, range(width))),
        values,
        rows,
        columns,
        0.0,
        1.0,
        tuple(tuple("" if entry is None else f"{entry.value:.2f}" for entry in row) for row in entries)
        if max(len(entries), width) <= MOST_COLUMNS
        else (),
    )


def widest(entries: Entries) -> float:
    """Half of the widest interval."""
    return max((max(e.high - e.value, e.value - e.low) for row in entries for e in row if e is not None), default=0.0)


def _text(entry: Entry | None) -> str:
    return "" if entry is None else f"{entry.value:.2f}"


def _interval(entry: Entry | None) -> str:
    return "" if entry is None else f"{entry.low:.3f}-{entry.high:.3f}"
