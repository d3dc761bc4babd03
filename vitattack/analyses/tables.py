"""Tables with a column for each model or published source, so that they stand side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vitattack.core.percent import span
from vitattack.core.table import Table
from vitattack.records.stats import Accuracy


def side_by_side(
    title: str, head: str, keys: Sequence[str], columns: Mapping[str, Mapping[str, str]], notes: Sequence[str] = ()
) -> Table:
    """A row for each key, a column for each name; what a column lacks stays empty."""
    rows = [(key, *(column.get(key, "") for column in columns.values())) for key in keys]
    return Table(title, (head, *columns), rows, tuple(notes))


def share_text(accuracy: Accuracy) -> str:
    """A share in percent with its 95 % interval, without the unit."""
    return f"{100 * accuracy.accuracy:.1f} ({span(accuracy.low, accuracy.high, '-')})"
