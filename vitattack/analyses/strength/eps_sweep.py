"""Accuracy over budgets, from runs of the store, with verdicts on the attack."""

from __future__ import annotations

from vitattack.analyses.curves import accuracy_row, curve_of
from vitattack.analyses.figure import Curves, Series
from vitattack.analyses.findings import Findings, Row
from vitattack.analyses.published import LIGHT, PublishedCurve
from vitattack.analyses.run import AnalysisRun
from vitattack.analyses.strength.questions import EpsSweep
from vitattack.analyses.tables import share_text, side_by_side
from vitattack.core.errors import UsageError
from vitattack.core.percent import percent
from vitattack.records.eps_curve import optimiser_failures
from vitattack.records.result import Evaluation
from vitattack.records.stats import Accuracy
from vitattack.threats.lp import LpBall

# Accuracy above this share at a budget where any image can become a grey one speaks against the attack.
MASKED = 0.01
DESTROYS = {"linf": 64 / 255, "l2": 10.0}

PUBLISHED = PublishedCurve(
    "XCiT-S12",
    "ImageNet, AutoAttack",
    LIGHT,
    tuple(step / 255 for step in range(0, 17, 2)),
    (0.7234, 0.5880, 0.4178, 0.2518, 0.1298, 0.0550, 0.0204, 0.0060, 0.0024),
    5000,
)


def sweep(analysis: EpsSweep, run: AnalysisRun) -> Findings:
    """Run the attack under every budget, each its own job, and judge the curve."""
    balls = [ball for ball in run.budgets if isinstance(ball, LpBall)]
    if len(balls) < len(run.budgets) or len({ball.norm for ball in balls}) > 1:
        raise UsageError("eps-sweep is of budgets in one norm: write --threat linf:2/255,4/255,8/255")
    balls = sorted(balls, key=lambda ball: ball.eps)
    rows: list[Row] = []
    columns: dict[str, dict[str, str]] = {}
    series: list[Series] = []
    remarks: list[str] = []
    for name, model in run.named:
        found = run.evaluate(model, analysis.attack)
        curve = [(ball.eps, found.under(str(ball)).worst_case) for ball in balls]
        for ball, (_, accuracy) in zip(balls, curve, strict=True):
            rows.append({"eps": ball.eps, **accuracy_row(name, analysis.attack, str(ball), accuracy)})
        columns[name] = {str(ball): share_text(a) for ball, (_, a) in zip(balls, curve, strict=True)}
        series.append(curve_of(name, curve))
        remarks += [f"{name}: {verdict}" for verdict in verdicts(found, balls, curve)]
    norm, notes = balls[0].norm, []
    if norm == "linf":
        series.append(Series(f"{PUBLISHED.name}, {PUBLISHED.about}", PUBLISHED.x, PUBLISHED.y, reference=True))
        known = zip(PUBLISHED.x, PUBLISHED.y, strict=True)
        columns[PUBLISHED.model] = {str(LpBall("linf", eps)): f"{100 * share:.1f}" for eps, share in known}
        notes.append(f"{PUBLISHED.name}: published, {PUBLISHED.about}, {PUBLISHED.n} images")
    title = f"Accuracy against eps, {analysis.attack}"
    keys = [str(ball) for ball in balls]
    table = side_by_side(f"{title}, in % with 95 % intervals", "threat", keys, columns, notes)
    return run.findings(
        rows, [table], [Curves(title, f"eps ({norm})", "accuracy", tuple(series), percent=True)], remarks
    )


def verdicts(found: Evaluation, balls: list[LpBall], curve: list[tuple[float, Accuracy]]) -> list[str]:
    """What the curve says about the attack."""
    said = []
    if balls[0].eps == 0:
        same = curve[0][1].correct == found.clean.correct
        said.append("at eps 0 the accuracy is the clean one" if same else "at eps 0 the accuracy is NOT the clean one")
    rises = optimiser_failures([(str(ball), accuracy) for ball, (_, accuracy) in zip(balls, curve, strict=True)])
    said += rises or ["the accuracy never rises by more than a standard error as eps grows"]
    last, end = balls[-1], curve[-1][1]
    if last.eps < DESTROYS[last.norm]:
        said.append(f"whether it reaches zero was not asked: the largest budget is {last}")
    elif end.accuracy > MASKED:
        said.append(f"{percent(end.accuracy)} are left at {last}: gradients may be masked, run vitattack check")
    else:
        said.append(f"it falls to {percent(end.accuracy)} at {last}, as it should")
    return said
