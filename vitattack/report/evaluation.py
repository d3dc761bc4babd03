"""The table of one evaluation: clean, each attack, the worst case; every number with its n, interval and cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vitattack.evaluation import stats
from vitattack.evaluation.referee import referee
from vitattack.evaluation.result import Evaluation
from vitattack.evaluation.spatial_report import spatial_report
from vitattack.evaluation.stats import Accuracy
from vitattack.report.table import Table

COLUMNS = ("attack", "accuracy", "95 %", "correct", "fwd", "bwd", "step", "sec")


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def interval(accuracy: Accuracy) -> str:
    return f"{100 * accuracy.low:.1f} - {100 * accuracy.high:.1f}"


def _row(name: str, accuracy: Accuracy, *cost: str) -> tuple[str, ...]:
    counted = f"{accuracy.correct}/{accuracy.n}"
    return (name, percent(accuracy.accuracy), interval(accuracy), counted, *(cost or ("", "", "", "")))


def table(evaluation: Evaluation) -> Table:
    """`fwd` and `bwd` are mean passes per attacked (clean-correct) sample, `step` the mean step of the first success."""
    rows, spatial_notes = [_row("clean", evaluation.clean)], []
    for result in evaluation.results:
        forwards, backwards = stats.mean_passes(result.records)
        first = result.mean_first_success
        shown = "-" if first is None else f"{first:.1f}"
        rows.append(
            _row(
                result.job.attack, result.robust, f"{forwards:.1f}", f"{backwards:.1f}", shown, f"{result.seconds:.1f}"
            )
        )
        found = spatial_report(result)
        if found is not None:
            rows += [_row("  shifts only", found.shifts), _row("  rotations only", found.rotations)]
            spatial_notes += [f"{result.job.attack}: {found.note}"] if found.note else []
    if len(evaluation.results) > 1:
        rows.append(_row("worst case", evaluation.worst_case))
    job = evaluation.job
    notes = [_paired_note(*pair) for pair in evaluation.paired()]
    notes += spatial_notes
    notes += [f"doubt: {doubt}" for doubt in evaluation.doubts]
    title = f"{job.model} | {job.threat} | {job.data} | n = {evaluation.n} | seed {job.seed}"
    return Table(title, COLUMNS, rows, notes)


def _paired_note(strongest: str, other: str, paired: stats.Paired) -> str:
    gain, loss = paired.only_second, paired.only_first
    return f"{strongest} against {other}: fools {gain} more and {loss} fewer (McNemar p = {paired.p_value:.2g})"


def tables(evaluation: Evaluation, verdicts: Sequence[str] = ()) -> list[Table]:
    """The table of the evaluation, with the referee's report of every run that scaled attention."""
    from vitattack.report import referee as report

    main = table(evaluation)
    reports = [(result.job, referee(result)) for result in evaluation.results]
    return [
        replace(main, notes=[*main.notes, *verdicts]),
        *(report.table(f"{job.attack}: the referee", found) for job, found in reports if found),
    ]
