"""Robust accuracy against clean accuracy."""

from __future__ import annotations

from collections.abc import Sequence

from vitattack.analyses.figure import Curves, Series
from vitattack.analyses.findings import Findings, Row
from vitattack.analyses.landscape.points import CLEAN, PUBLISHED, ROBUST, STORED, Point
from vitattack.analyses.landscape.questions import Scatter
from vitattack.analyses.landscape.store_run import StoreRun
from vitattack.core.percent import percent
from vitattack.core.table import Table


def scatter(analysis: Scatter, run: StoreRun) -> Findings:
    """Every model with both numbers, the most robust first."""
    found = sorted(run.points(CLEAN, ROBUST), key=lambda point: -point.values[ROBUST].accuracy)
    rows = [_row(point) for point in found]
    cells = [
        (p.model, p.family, p.origin, f"{100 * p.values[CLEAN].accuracy:.1f}", f"{100 * p.values[ROBUST].accuracy:.1f}")
        for p in found
    ]
    title = f"Clean and robust accuracy on {run.data}, {run.threat}, in %"
    table = Table(title, ("model", "family", "from", "clean", "robust"), cells, left=3, whole=True)
    return run.findings(rows, [table], [_figure(title, found)], _remarks(found))


def _row(point: Point) -> Row:
    clean, robust = point.values[CLEAN], point.values[ROBUST]
    return {
        "model": point.model,
        "family": point.family,
        "origin": point.origin,
        "clean": clean.accuracy,
        "robust": robust.accuracy,
        "low": robust.low if robust.n else None,
        "high": robust.high if robust.n else None,
        "n": robust.n or None,
        "about": point.about,
    }


def _figure(title: str, found: Sequence[Point]) -> Curves:
    families = sorted({point.family for point in found if point.origin == PUBLISHED})
    groups = [
        (f"{name}, published", [p for p in found if p.origin == PUBLISHED and p.family == name]) for name in families
    ]
    stored = [point for point in found if point.origin == STORED]
    groups += [("stored here", stored)] if stored else []
    series = tuple(
        Series(
            name,
            tuple(100 * p.values[CLEAN].accuracy for p in own),
            tuple(p.values[ROBUST].accuracy for p in own),
            tuple(p.values[ROBUST].low for p in own),
            tuple(p.values[ROBUST].high for p in own),
        )
        for name, own in groups
    )
    labels = tuple((100 * p.values[CLEAN].accuracy, p.values[ROBUST].accuracy, p.model) for p in stored)
    return Curves(title, "clean accuracy, %", "robust accuracy", series, percent=True, joined=False, labels=labels)


def _remarks(found: Sequence[Point]) -> list[str]:
    best: dict[str, Point] = {}
    for point in found:  # the most robust first
        if point.origin == PUBLISHED:
            best.setdefault(point.family, point)
    return [
        f"most robust {family} published: {point.model}, {percent(point.values[ROBUST].accuracy)}"
        for family, point in best.items()
        if family != "other"
    ]
