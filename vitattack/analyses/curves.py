"""Accuracies as rows, and as series of a figure."""

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


def accuracy_row(model: str, attack: str, threat: str, accuracy: Accuracy) -> Row:
    """An accuracy of a model as a row of findings."""
    return {"model": model, "attack": attack, "threat": threat, **accuracy.json(), "n": accuracy.n}
