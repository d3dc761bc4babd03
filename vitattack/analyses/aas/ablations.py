"""Accuracies under AAS and under its inner attack, from runs of the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from vitattack.analyses.aas.questions import AasDepth, AasEps, AasSteps, OfScaling, ScaledBlocks
from vitattack.analyses.curves import accuracy_row, curve_of
from vitattack.analyses.figure import Curves
from vitattack.analyses.findings import Findings
from vitattack.analyses.run import AnalysisRun, Model
from vitattack.analyses.tables import share_text, side_by_side
from vitattack.core.errors import UsageError
from vitattack.core.percent import percent
from vitattack.evaluation.batch_runner import read_batch
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.records.stats import Accuracy, mcnemar
from vitattack.threats.lp import LpBall

INNER, SCALED = "inner", "aas"
NOTE = "every example is judged on the plain model, those of the paper on the scaled one"


class Point(NamedTuple):
    """One attack of one model at one place of the axis."""

    model: str
    line: str  # inner or aas
    x: float
    key: str
    attack: str
    threat: str
    accuracy: Accuracy


def scaled_blocks(analysis: ScaledBlocks, run: AnalysisRun) -> Findings:
    """Run the inner attack, and AAS on the first layers."""
    points, remarks = [], []
    for name, model in run.named:
        layers = layers_of(run, name, model)
        counts = sorted(analysis.counts or {(layers + 1) // 2, layers})
        if counts[-1] > layers:
            raise UsageError(f"'{name}' has {layers} attention layers: counts go up to that")
        texts = [analysis.scaled(analysis.inner, _first(count, layers)) for count in counts]
        found = run.evaluate(model, [analysis.inner, *texts])
        attacks = [analysis.inner, *texts]
        for at, count in enumerate([0, *counts]):
            accuracy = found[at].robust
            points.append(Point(name, SCALED, float(count), str(count), attacks[at], run.threat, accuracy))
        first, last = found[0].robust.accuracy, found[len(counts)].robust.accuracy
        remarks.append(
            f"{name}: scaling all {counts[-1]} layers takes {percent(first - last)} from what {analysis.inner} leaves"
        )
    return _findings(run, points, "layers scaled", "number of attention layers scaled", remarks)


def depth(analysis: AasDepth, run: AnalysisRun) -> Findings:
    """Run both attacks on every model, and set the difference against its number of layers."""
    points, remarks = [], []
    for name, model in run.named:
        layers = layers_of(run, name, model)
        inner, scaled = analysis.inner, analysis.scaled(analysis.inner)
        found = run.evaluate(model, [inner, scaled])
        for at, (line, attack) in enumerate(((INNER, inner), (SCALED, scaled))):
            points.append(Point(name, line, float(layers), f"{layers} ({name})", attack, run.threat, found[at].robust))
        paired = mcnemar(found[0].records, found[1].records)
        gap = found[0].robust.accuracy - found[1].robust.accuracy
        remarks.append(
            f"{name}: {layers} layers, AAS takes {percent(gap)} more than {inner} (p = {paired.p_value:.2g})"
        )
    return _findings(run, points, "layers", "number of attention layers", remarks)


def steps_of_both(analysis: AasSteps, run: AnalysisRun) -> Findings:
    """Run both attacks for every number of steps."""
    axis = [(float(k), str(k), analysis.inner.replace("{steps}", str(k)), run.threat) for k in sorted(analysis.steps)]
    points = _both(analysis, run, axis)
    return _findings(run, points, "steps", "steps of the inner attack", _last_gaps(points, "steps"), log_x=True)


def budgets_of_both(analysis: AasEps, run: AnalysisRun) -> Findings:
    """Run both attacks under every budget."""
    balls = [ball for ball in run.budgets if isinstance(ball, LpBall)]
    if len(balls) < len(run.budgets) or len({ball.norm for ball in balls}) > 1:
        raise UsageError("aas-eps is of budgets in one norm: write --threat linf:8/255,40/255,105/255")
    axis = [(ball.eps, str(ball), analysis.inner, str(ball)) for ball in sorted(balls, key=lambda ball: ball.eps)]
    points = _both(analysis, run, axis)
    return _findings(run, points, "threat", f"eps ({balls[0].norm})", _last_gaps(points, "the largest budget"))


def layers_of(run: AnalysisRun, name: str, model: Model) -> int:
    """The number of attention layers of a model; refused where there are none."""
    prepared = run.open(model)
    x, _, _ = read_batch(prepared.images, prepared.images.rows[:2], prepared.victim, prepared.device)
    layers = len(attention_layers(prepared.victim, x))
    if not layers:
        raise UsageError(f"model '{name}' has no attention that I can see, so there is nothing to scale: name others")
    return layers


def _first(count: int, layers: int) -> str:
    return "" if count == layers else f"blocks=({', '.join(map(str, range(count)))},)"


def _both(analysis: OfScaling, run: AnalysisRun, axis: Sequence[tuple[float, str, str, str]]) -> list[Point]:
    points = []
    for name, model in run.named:
        layers_of(run, name, model)
        for x, key, inner, threat in axis:
            attacks = {INNER: inner, SCALED: analysis.scaled(inner)}
            found = run.evaluate(model, [*attacks.values()], threat)
            points += [
                Point(name, line, x, key, attack, threat, found[at].robust)
                for at, (line, attack) in enumerate(attacks.items())
            ]
    return points


def _last_gaps(points: Sequence[Point], where: str) -> list[str]:
    said = []
    for model in dict.fromkeys(point.model for point in points):
        last = {point.line: point for point in points if point.model == model}  # the last of each line
        inner, scaled = (last[line].accuracy.accuracy for line in (INNER, SCALED))
        said.append(
            f"{model}: at {last[INNER].key} ({where}) the inner attack leaves {percent(inner)}, AAS {percent(scaled)}"
        )
    return said


def _findings(
    run: AnalysisRun, points: Sequence[Point], head: str, x_label: str, remarks: Sequence[str], *, log_x: bool = False
) -> Findings:
    rows = [{head: p.key, "line": p.line, **accuracy_row(p.model, p.attack, p.threat, p.accuracy)} for p in points]
    columns: dict[str, dict[str, str]] = {}
    curves: dict[str, list[tuple[float, Accuracy]]] = {}
    for p in points:
        one_line = head == "layers scaled"  # of AAS alone, beginning with none
        line = p.line if head == "layers" else p.model if one_line else f"{p.model}, {p.line}"
        columns.setdefault(line, {})[p.key] = share_text(p.accuracy)
        curves.setdefault(line, []).append((p.x, p.accuracy))
    keys = list(dict.fromkeys(p.key for p in points))
    title = "Accuracy under AAS and its inner attack"
    table = side_by_side(f"{title}, in % with 95 % intervals", head, keys, columns, [NOTE])
    series = tuple(curve_of(name, sorted(curve)) for name, curve in curves.items())
    figure = Curves(title, x_label, "robust accuracy", series, percent=True, log_x=log_x, joined=head != "layers")
    return run.findings(rows, [table], [figure], remarks)
