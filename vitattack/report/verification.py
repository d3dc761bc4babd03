"""Tables of a verification: what is wrong with examples, and who found what."""

from __future__ import annotations

from vitattack.core.percent import percent, span
from vitattack.core.table import Table
from vitattack.records.verification import FAULTS, Verification, some_rows
from vitattack.threats.base import parse_threat
from vitattack.threats.lp import LpBall


def verification_tables(verification: Verification) -> list[Table]:
    """Checks first; with stored runs, who found what."""
    result = verification.result
    job, given = result.job, len(verification.given)
    rows = [
        (text, str(len(rows)), some_rows(rows))
        for name, text in FAULTS.items()
        for rows in (verification.faults[name],)
    ]
    rows += [
        ("fool the model", str(len(verification.fooled)), ""),
        (
            "fool it no more when rounded to 8 bits",
            str(len(verification.lost_by_rounding)),
            some_rows(verification.lost_by_rounding),
        ),
    ]
    ball = parse_threat(job.threat)
    unit = f", {255 * verification.largest:.4f}/255" if isinstance(ball, LpBall) and ball.norm == "linf" else ""
    verdict = "refuted in part" if verification.refuted else "nothing is wrong with them"
    notes = [
        f"largest perturbation: {verification.largest:.8g}{unit}",
        f"robust accuracy against them: {_accuracy(verification)}",
        *(f"doubt: {doubt}" for doubt in result.doubts),
    ]
    title = f"{given} examples of {verification.source} | {job.model} | {job.threat} | {job.data}: {verdict}"
    tables = [Table(title, ("examples that", "count", "images"), rows, notes)]
    if verification.against:
        tables.append(_merged(verification))
    return tables


def _accuracy(verification: Verification) -> str:
    robust = verification.result.robust
    return f"{percent(robust.accuracy)} ({span(robust.low, robust.high)}), clean {percent(verification.result.clean.accuracy)}"


def _merged(verification: Verification) -> Table:
    rows = [
        (
            each.source,
            str(each.fooled),
            str(each.alone),
            percent(each.robust.accuracy),
            span(each.robust.low, each.robust.high),
        )
        for each in verification.contributions
    ]
    worst = verification.worst_case
    rows.append(("worst case", "", "", percent(worst.accuracy), span(worst.low, worst.high)))
    notes = [
        f"only the examples fool {len(verification.new)} images{': ' * bool(verification.new)}{some_rows(verification.new)}"
    ]
    return Table("who found what", ("source", "fooled", "alone", "robust", "95 %"), rows, notes)
