"""Accuracies as rows, and numbers with intervals as series of a figure."""

from __future__ import annotations

from collections.abc import Sequence

from vitattack.analyses.figure import Series
from vitattack.analyses.findings import Row
from vitattack.records.stats import Accuracy


def curve_of(name: str, points: Sequence[tuple[float, Accuracy]]) -> Series:
    """Accuracies over an axis, with their intervals."""
    return Series(
        name,
        tuple(x for x, _ in points),
        tuple(accuracy.accuracy for _, accuracy in points),
        tuple(accuracy.low for _, accuracy in points),
        tuple(accuracy.high for _, accuracy in points),
    )


def at_places(name: str, points: Sequence[tuple[float, float, float] | None]) -> Series:
    """Values with their intervals at the places 0, 1, ... of a bar chart; None leaves one free."""

    def each(part: int) -> tuple[float | None, ...]:
        return tuple(None if point is None else point[part] for point in points)

    return Series(name, tuple(map(float, range(len(points)))), each(0), each(1), each(2))


def bars_of(name: str, accuracies: Sequence[Accuracy | None]) -> Series:
    """Accuracies with their intervals as bars."""
    return at_places(name, [None if a is None else (a.accuracy, a.low, a.high) for a in accuracies])


def accuracy_row(model: str, attack: str, threat: str, accuracy: Accuracy) -> Row:
    """An accuracy of a model as a row of findings."""
    return {"model": model, "attack": attack, "threat": threat, **accuracy.json(), "n": accuracy.n}
