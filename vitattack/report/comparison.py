"""Tables of a comparison: what each side reaches and costs, and the differences with their tests."""

from __future__ import annotations

from collections.abc import Sequence

from vitattack.core.percent import percent, span
from vitattack.core.table import Table
from vitattack.records.comparison import Comparison, Contrast, significance
from vitattack.report.runs import duration

LISTED = 10  # images of either kind that a note names


def comparison_tables(comparison: Comparison) -> list[Table]:
    """Two tables; doubts and who flipped are notes of the second."""
    several = len(comparison.rows) > 1
    heads = ["run"] * several + ["side"]
    accuracies = [
        (
            *([row.name] if several else []),
            column.side,
            percent(column.clean.accuracy),
            percent(column.accuracy.accuracy),
            span(column.accuracy.low, column.accuracy.high),
            f"{column.passes:.0f}",
            duration(column.seconds),
        )
        for row in comparison.rows
        for column in row.columns
    ]
    first = Table(comparison.title, (*heads, "clean", "robust", "95 %", "passes", "time"), accuracies, left=len(heads))
    contrasts = [(row.name, each) for row in comparison.rows for each in row.contrasts]
    differences = [
        (
            *([name] if several else []),
            each.second.side,
            f"{100 * each.gap.difference:+.1f}",
            span(each.gap.low, each.gap.high, " to ", signed=True),
            str(len(each.lost)),
            str(len(each.won)),
            f"{each.paired.p_value:.2g}",
        )
        for name, each in contrasts
    ]
    reference = comparison.sides[0]
    columns = (*heads, "difference", "95 %", "lost", "won", "p")
    notes = [
        f"lost: images robust with {reference} alone, won: those that it loses; 95 %: Newcombe, paired; p: exact McNemar"
    ]
    tests = significance(len(contrasts))
    notes += [tests] if tests else []
    notes += [line for name, each in contrasts for line in _flipped(name if several else "", each)]
    notes += [*comparison.notes, *(f"doubt: {doubt}" for doubt in comparison.doubts)]
    return [first, Table(f"robust accuracy minus that of {reference}", columns, differences, notes, left=len(heads))]


def _flipped(name: str, contrast: Contrast) -> list[str]:
    """Which images changed sides, where there are few."""
    total = len(contrast.lost) + len(contrast.won)
    if not 0 < total <= 2 * LISTED:
        return []
    where = f"{name}, {contrast.second.side}" if name else contrast.second.side
    parts = [f"{word} {_list(rows)}" for word, rows in (("lost", contrast.lost), ("won", contrast.won)) if rows]
    return [f"{where}: {'; '.join(parts)}"]


def _list(rows: Sequence[int]) -> str:
    return f"image{'s' * (len(rows) > 1)} {', '.join(map(str, rows))}"
