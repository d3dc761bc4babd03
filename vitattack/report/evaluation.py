"""The table of one evaluation: clean, each attack, the worst case; every number with its n, interval and cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from vitattack.attacks import attack_text, stages
from vitattack.attacks.aas.report import referee
from vitattack.attacks.auto.report import auto_report
from vitattack.attacks.perceptual.report import appearance
from vitattack.attacks.spatial.report import spatial_report
from vitattack.core.table import Table
from vitattack.records import stats
from vitattack.records.result import Evaluation, Result
from vitattack.records.stats import Accuracy

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
    rows = [("", _row("clean", evaluation.clean))]
    for result in evaluation.results:
        forwards, backwards = stats.mean_passes(result.records)
        first = result.mean_first_success
        cost = f"{forwards:.1f}", f"{backwards:.1f}", "-" if first is None else f"{first:.1f}", f"{result.seconds:.1f}"
        rows.append((result.job.threat, _row(label(result.job.attack), result.robust, *cost)))
        rows += [(result.job.threat, row) for row in _spatial(result)]
    several = len(evaluation.threats) > 1
    if len(evaluation.results) > len(evaluation.threats):
        rows += [(threat, _row("worst case", evaluation.under(threat).worst_case)) for threat in evaluation.threats]
    job = evaluation.job
    notes = [_paired_note(*pair) for pair in evaluation.paired()]
    notes += [note for result in evaluation.results for note in (*_stages(result, several), *_fooling(result))]
    notes += [f"doubt: {doubt}" for doubt in evaluation.doubts]
    title = f"{job.model} | {', '.join(evaluation.threats)} | {job.data} | n = {evaluation.n} | seed {job.seed}"
    if several:
        columns = (COLUMNS[0], "threat", *COLUMNS[1:6])  # as wide as a terminal
        return Table(title, columns, [(row[0], threat, *row[1:6]) for threat, row in rows], notes, left=2)
    return Table(title, COLUMNS, [row for _, row in rows], notes)


def label(text: str) -> str:
    """An attack as rows name it: the wrapper that only measures goes without saying."""
    return (attack_text.held(text) or text) if text.startswith("perceptual(") else text


def _stages(result: Result, several: bool) -> Iterator[str]:
    """Which stage broke how many."""
    told = auto_report(result.job, result.records)
    if told:
        where = f"at {result.job.threat}, " if several else ""
        yield from (f"{where}{note}" for note in told.notes)
        return
    broken = stages.broken(result.job.attack, result.records)
    if broken:
        counts = ", ".join(f"{name} {count}" for name, count in broken.items())
        yield f"broken by stage{f' at {result.job.threat}' if several else ''}: {counts}"


def _spatial(result: Result) -> list[tuple[str, ...]]:
    """What shifts and what rotations leave by themselves."""
    found = spatial_report(result)
    return [_row("  shifts only", found.shifts), _row("  rotations only", found.rotations)] if found else []


def _fooling(result: Result) -> Iterator[str]:
    """How many transforms of the full grid fool an image."""
    found = spatial_report(result)
    if found and found.note:
        yield f"{label(result.job.attack)}: {found.note}"


def _looks(evaluation: Evaluation) -> list[Table]:
    """How the successes look, where the runs measured it."""
    rows = []
    for result in evaluation.results:
        found = appearance(result.records)
        if found:
            lpips = "-" if found.lpips is None else f"{found.lpips:.4f}"
            linf = f"{255 * found.linf:.2f}/255"
            name = label(result.job.attack)
            rows.append((name, result.job.threat, str(found.n), f"{found.l2:.3f}", linf, f"{found.ssim:.4f}", lpips))
    columns = ("attack", "threat", "fooled", "l2", "linf", "SSIM", "LPIPS")
    return [Table("how the fooled images differ from their originals (means)", columns, rows, left=2)] if rows else []


def _bought(evaluation: Evaluation) -> list[Table]:
    """What each stage of `auto` bought for its passes."""
    found = []
    columns = ("stage", "tried", "broke", "passes", "share")
    for result in evaluation.results:
        told = auto_report(result.job, result.records)
        if told is None:
            continue
        total = max(1, sum(stage.passes for stage in told.bought))
        rows = [(s.stage, str(s.tried), str(s.broke), f"{s.passes:,}", f"{s.passes / total:.0%}") for s in told.bought]
        found.append(Table(f"{label(result.job.attack)} at {result.job.threat}: what each stage bought", columns, rows))
    return found


def _paired_note(strongest: str, other: str, paired: stats.Paired) -> str:
    gain, loss = paired.only_second, paired.only_first
    return f"{label(strongest)} against {label(other)}: fools {gain} more and {loss} fewer (McNemar p = {paired.p_value:.2g})"


def tables(evaluation: Evaluation, verdicts: Sequence[str] = ()) -> list[Table]:
    """The table of the evaluation, with the referee's report of every run that scaled attention."""
    from vitattack.report import referee as report

    main = table(evaluation)
    reports = [(result.job, referee(result)) for result in evaluation.results]
    return [
        replace(main, notes=[*main.notes, *verdicts]),
        *_bought(evaluation),
        *_looks(evaluation),
        *(report.table(f"{label(job.attack)}: the referee", found) for job, found in reports if found),
    ]
