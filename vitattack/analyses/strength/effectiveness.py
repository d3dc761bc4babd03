"""d_k: the loss that attacks of k steps reach, relative to that of an oracle."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from vitattack.analyses.figure import Curves, Figure, Series
from vitattack.analyses.findings import Findings, Row
from vitattack.analyses.intervals import Estimate, mean_of, ratio_of
from vitattack.analyses.run import AnalysisRun, Model
from vitattack.analyses.strength.checkpoints import checkpoints_of, victims_of
from vitattack.analyses.strength.losses import losses, losses_after
from vitattack.analyses.strength.questions import Effectiveness
from vitattack.analyses.tables import side_by_side
from vitattack.analyses.words import is_training_run


class Subject(NamedTuple):
    """A model or a checkpoint, with the epoch after which it was written."""

    name: str
    run: str | None
    epoch: int | None
    model: Model


class Measured(NamedTuple):
    """Mean losses over the seeds, image by image, and d_k of each seed."""

    clean: list[float]
    oracle: list[float]
    by_steps: dict[int, list[float]]
    by_seed: dict[int, list[float]]


def effectiveness(analysis: Effectiveness, run: AnalysisRun) -> Findings:
    """Measure every model, and every checkpoint of a training run."""
    found = [(subject, _measured(analysis, run, subject.model)) for subject in _subjects(run)]
    rows = [row for subject, measured in found for row in _rows(subject, measured)]
    columns = {subject.name: _column(measured) for subject, measured in found}
    keys = [f"d_{k}, %" for k in analysis.steps]
    keys += [*(f"d_{k} median, %" for k in analysis.steps), "clean loss", "oracle loss"]
    table = side_by_side(
        f"Effectiveness of few steps against PGD-{analysis.oracle}, {run.threat}, with 95 % intervals over images",
        "",
        keys,
        columns,
        ["d_k: loss of k steps relative to the oracle's, of the mean losses; median: of each image by itself"],
    )
    return run.findings(rows, [table], list(_figures(analysis, found)), _remarks(analysis, found), models=list(columns))


def _subjects(run: AnalysisRun) -> Iterator[Subject]:
    for name, model in run.named:
        if isinstance(model, str) and is_training_run(model):
            folder = Path(model)
            kept = checkpoints_of(folder)
            run.reads(*(checkpoint.path for checkpoint in kept), folder / "result.json")
            for checkpoint, victim in victims_of(folder, kept):
                yield Subject(f"{folder.name}, epoch {checkpoint.epoch}", folder.name, checkpoint.epoch, victim)
        else:
            yield Subject(name, None, None, model)


def _measured(analysis: Effectiveness, run: AnalysisRun, model: Model) -> Measured:
    prepared, ball = run.open(model), run.ball

    def measure(x: Tensor, y: Tensor, rows: tuple[int, ...]) -> dict[str, Any]:
        after = {
            k: [
                losses_after(prepared.victim, ball, x, y, k, run.rng(rows, f"seed {seed}")).tolist()
                for seed in range(analysis.seeds)
            ]
            for k in {*analysis.steps, analysis.oracle}
        }
        return {"clean": losses(prepared.victim, x, y).tolist(), "after": {str(k): each for k, each in after.items()}}

    parts = run.over_batches(prepared, measure)
    clean = [value for part in parts for value in part["clean"]]

    def of_seed(k: int, seed: int) -> list[float]:
        return [value for part in parts for value in part["after"][str(k)][seed]]

    def mean_over_seeds(k: int) -> list[float]:
        return [statistics.fmean(each) for each in zip(*(of_seed(k, s) for s in range(analysis.seeds)), strict=True)]

    by_seed = {
        k: [ratio_of(of_seed(k, s), of_seed(analysis.oracle, s)).value - 1 for s in range(analysis.seeds)]
        for k in analysis.steps
    }
    return Measured(clean, mean_over_seeds(analysis.oracle), {k: mean_over_seeds(k) for k in analysis.steps}, by_seed)


def d_of(after: Sequence[float], oracle: Sequence[float]) -> Estimate:
    """d_k of mean losses."""
    ratio = ratio_of(after, oracle)
    ends = (None if end is None else end - 1 for end in (ratio.low, ratio.high))
    return Estimate(ratio.value - 1, *ends)


def median_d(after: Sequence[float], oracle: Sequence[float]) -> float:
    """The median of the d_k of each image."""
    return statistics.median([(a - o) / o if o else 0.0 for a, o in zip(after, oracle, strict=True)])


def _rows(subject: Subject, measured: Measured) -> Iterator[Row]:
    oracle, clean = mean_of(measured.oracle), mean_of(measured.clean)
    for k, after in measured.by_steps.items():
        d = d_of(after, measured.oracle)
        yield {
            "model": subject.name,
            "run": subject.run,
            "epoch": subject.epoch,
            "steps": k,
            "d": d.value,
            "low": d.low,
            "high": d.high,
            "lowest_seed": min(measured.by_seed[k]),
            "highest_seed": max(measured.by_seed[k]),
            "median": median_d(after, measured.oracle),
            "loss": mean_of(after).value,
            "oracle_loss": oracle.value,
            "clean_loss": clean.value,
            "n": len(after),
        }


def _column(measured: Measured) -> dict[str, str]:
    column = {f"d_{k}, %": d_of(a, measured.oracle).text(1, 100) for k, a in measured.by_steps.items()}
    column |= {f"d_{k} median, %": f"{100 * median_d(a, measured.oracle):.1f}" for k, a in measured.by_steps.items()}
    return column | {
        "clean loss": mean_of(measured.clean).text(2),
        "oracle loss": mean_of(measured.oracle).text(2),
    }


def _figures(analysis: Effectiveness, found: Sequence[tuple[Subject, Measured]]) -> Iterator[Figure]:
    lines = []
    for subject, measured in found:
        points = [d_of(measured.by_steps[k], measured.oracle) for k in sorted(analysis.steps)]
        lines.append(_series(subject.name, [float(k) for k in sorted(analysis.steps)], points))
    title = f"Effectiveness of k steps against PGD-{analysis.oracle}"
    runs = list(dict.fromkeys(subject.run for subject, _ in found if subject.run))
    yield Curves(title, "steps k", "d_k", tuple(lines), log_x=True)
    for name in runs:
        of_run = sorted((s.epoch or 0, measured) for s, measured in found if s.run == name)
        yield Curves(
            f"Effectiveness over the training of {name}",
            "epoch",
            "d_k",
            tuple(
                _series(f"k = {k}", [float(e) for e, _ in of_run], [d_of(m.by_steps[k], m.oracle) for _, m in of_run])
                for k in analysis.steps
            ),
        )


def _series(name: str, x: Sequence[float], points: Sequence[Estimate]) -> Series:
    known = all(point.low is not None for point in points)
    low, high = (tuple(p.low for p in points), tuple(p.high for p in points)) if known else ((), ())
    return Series(name, tuple(x), tuple(point.value for point in points), low, high)


def _remarks(analysis: Effectiveness, found: Sequence[tuple[Subject, Measured]]) -> Iterator[str]:
    yield "the paper shows d_k of its ImageNet models in a figure only (Fig. 7), so that no published points stand beside"
    for subject, measured in found:
        beaten = [k for k in analysis.steps if d_of(measured.by_steps[k], measured.oracle).value > 0]
        if beaten:
            yield f"{subject.name}: {max(beaten)} steps beat the oracle, which is none then: raise oracle="
