"""Accuracy against size."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vitattack.analyses.figure import Curves, Series
from vitattack.analyses.findings import Findings, Row
from vitattack.analyses.landscape.points import CLEAN, PUBLISHED, ROBUST, STORED, Point
from vitattack.analyses.landscape.questions import Scaling
from vitattack.analyses.landscape.store_run import StoreRun
from vitattack.core.table import Table

FEWEST = 4  # models of a family whose ranks say something


def scaling(analysis: Scaling, run: StoreRun) -> Findings:
    """Every model with the number and a known size, by family."""
    every = run.points(analysis.metric)
    found = sorted((point for point in every if point.sizes), key=lambda point: (point.family, point.sizes or (0, 0)))
    rows = [_row(analysis.metric, point) for point in found]
    cells = [
        (
            point.model,
            point.family,
            point.origin,
            f"{(point.sizes or (0, 0))[0] / 1e6:,.1f}",
            f"{(point.sizes or (0, 0))[1] / 1e9:,.2f}",
            f"{100 * point.values[analysis.metric].accuracy:.1f}",
        )
        for point in found
    ]
    title = {
        ROBUST: f"Robust accuracy on {run.data}, {run.threat}",
        CLEAN: f"Clean accuracy on {run.data}",
    }.get(analysis.metric, f"{analysis.metric} of models of {run.data}")
    head = ("model", "family", "from", "M params", "GFLOPs", f"{analysis.metric}, %")
    figures = [
        _figure(
            f"{title}: parameters",
            "parameters, millions",
            found,
            analysis.metric,
            lambda p: (p.sizes or (0, 0))[0] / 1e6,
        ),
        _figure(
            f"{title}: FLOPs", "GFLOPs of a forward", found, analysis.metric, lambda p: (p.sizes or (0, 0))[1] / 1e9
        ),
    ]
    remarks = [*_trends(found, analysis.metric)]
    if len(found) < len(every):
        remarks.append(f"{len(every) - len(found)} models are left out, whose size the zoo does not know")
    return run.findings(rows, [Table(title, head, cells, left=3, whole=True)], figures, remarks)


def _row(metric: str, point: Point) -> Row:
    accuracy, sizes = point.values[metric], point.sizes or (0, 0)
    return {
        "model": point.model,
        "family": point.family,
        "origin": point.origin,
        "parameters": sizes[0],
        "flops": sizes[1],
        "metric": metric,
        "accuracy": accuracy.accuracy,
        "low": accuracy.low if accuracy.n else None,
        "high": accuracy.high if accuracy.n else None,
        "n": accuracy.n or None,
        "about": point.about,
    }


def _figure(title: str, x_label: str, found: Sequence[Point], metric: str, size: Callable[[Point], float]) -> Curves:
    groups = [
        (f"{family}, published", [p for p in found if (p.family, p.origin) == (family, PUBLISHED)])
        for family in dict.fromkeys(point.family for point in found)
    ]
    stored = [point for point in found if point.origin == STORED]
    series = tuple(
        Series(
            name,
            tuple(map(size, own)),
            tuple(p.values[metric].accuracy for p in own),
            tuple(p.values[metric].low for p in own),
            tuple(p.values[metric].high for p in own),
        )
        for name, own in (*groups, ("stored here", stored))
        if own
    )
    labels = tuple((size(p), p.values[metric].accuracy, p.model) for p in stored)
    return Curves(
        title,
        x_label,
        metric if metric not in (CLEAN, ROBUST) else f"{metric} accuracy",
        series,
        log_x=True,
        percent=True,
        joined=False,
        labels=labels,
    )


def _trends(found: Sequence[Point], metric: str) -> list[str]:
    said = []
    for family in dict.fromkeys(point.family for point in found):
        own = [p for p in found if (p.family, p.origin) == (family, PUBLISHED)]
        if len(own) >= FEWEST and family != "other":
            rho = rank_correlation(
                [float((p.sizes or (0, 0))[0]) for p in own], [p.values[metric].accuracy for p in own]
            )
            if rho is not None:
                said.append(f"{family}: rank correlation of parameters and {metric} {rho:+.2f}, {len(own)} published")
    return said


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Spearman's, ties sharing their mean rank; None where one side is constant."""
    a, b = _ranks(x), _ranks(y)
    mean = (len(x) - 1) / 2
    above = sum((p - mean) * (q - mean) for p, q in zip(a, b, strict=True))
    below = (sum((p - mean) ** 2 for p in a) * sum((q - mean) ** 2 for q in b)) ** 0.5
    return above / below if below else None


def _ranks(values: Sequence[float]) -> list[float]:
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) - 1) / 2 for value in values
    ]
