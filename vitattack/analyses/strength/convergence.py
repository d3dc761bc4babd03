"""Final losses of separate PGD runs over steps and restarts, and the way of the loss in one long run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitattack.analyses.figure import Curves, Figure, Series
from vitattack.analyses.findings import Findings, Row
from vitattack.analyses.intervals import Estimate, mean_of
from vitattack.analyses.run import AnalysisRun, Model
from vitattack.analyses.strength.losses import losses_after, losses_along
from vitattack.analyses.strength.questions import Convergence
from vitattack.analyses.tables import side_by_side
from vitattack.attacks.losses.base import is_correct
from vitattack.core.errors import UsageError

NEARLY = 0.99  # of the gain in loss of a long run
MOST_LINES = 20


class Image(NamedTuple):
    """Losses of one image: by number of steps and restart, and along the long run by restart."""

    row: int
    final: dict[int, list[float]]
    along: list[list[float]]

    def spread(self, steps: int) -> float:
        """The range of final losses over the restarts, relative to their mean."""
        each = self.final[steps]
        return (max(each) - min(each)) / statistics.fmean(each) if statistics.fmean(each) else 0.0

    def steps_until_near(self) -> float:
        """Steps of the long run until nearly all of its gain is there, on average over the restarts."""
        found = []
        for run in self.along:
            wanted = run[0] + NEARLY * (max(run) - run[0])
            found.append(next(at for at, loss in enumerate(run) if loss >= wanted))
        return statistics.fmean(found)


def convergence(analysis: Convergence, run: AnalysisRun) -> Findings:
    """Measure every model on the images it classifies correctly."""
    found = [(name, _images(analysis, run, name, model)) for name, model in run.named]
    rows = [row for name, images in found for row in _rows(analysis, name, images)]
    columns = {name: _column(analysis, images) for name, images in found}
    table = side_by_side(
        f"Final loss of PGD by steps, {analysis.restarts} starts, {run.threat}, mean over images with 95 % intervals",
        "",
        [
            *(f"loss, {steps} steps" for steps in analysis.steps),
            *(f"spread, {steps} steps, %" for steps in analysis.steps),
            "long run: steps to 99 %",
            "images",
        ],
        columns,
        ["spread: largest minus smallest loss over the starts, relative to their mean, averaged over images"],
    )
    return run.findings(rows, [table], list(_figures(analysis, found)), _remarks(analysis, found))


def _images(analysis: Convergence, run: AnalysisRun, name: str, model: Model) -> list[Image]:
    prepared, ball = run.open(model), run.ball
    victim = prepared.victim

    def measure(x: Tensor, y: Tensor, rows: tuple[int, ...]) -> dict[str, Any]:
        with torch.no_grad():
            kept = is_correct(victim(x), y)
        x, y = x[kept], y[kept]
        index = [row for row, keep in zip(rows, kept.tolist(), strict=True) if keep]
        if not index:
            return {"index": [], "final": {}, "along": []}
        starts = [run.rng(index, f"restart {r}") for r in range(analysis.restarts)]
        final = {str(k): [losses_after(victim, ball, x, y, k, rng).tolist() for rng in starts] for k in analysis.steps}
        along = [
            torch.stack(losses_along(victim, ball, x, y, analysis.long, analysis.long_step, rng)).tolist()
            for rng in starts
        ]
        return {"index": index, "final": final, "along": along}

    parts = run.over_batches(prepared, measure)
    images = [
        Image(
            index,
            {k: [restart[at] for restart in part["final"][str(k)]] for k in analysis.steps},
            [[step[at] for step in restart] for restart in part["along"]],
        )
        for part in parts
        for at, index in enumerate(part["index"])
    ]
    if not images:
        raise UsageError(f"'{name}' classifies none of these images correctly: raise --limit, or choose other data")
    return images


def _rows(analysis: Convergence, name: str, images: Sequence[Image]) -> Iterator[Row]:
    for image in images:
        for steps in analysis.steps:
            each = image.final[steps]
            yield {
                "model": name,
                "index": image.row,
                "steps": steps,
                "restarts": len(each),
                "loss": statistics.fmean(each),
                "lowest": min(each),
                "highest": max(each),
                "spread": image.spread(steps),
                "steps_to_99": image.steps_until_near(),
            }


def _mean_loss(images: Sequence[Image], steps: int) -> Estimate:
    return mean_of([statistics.fmean(image.final[steps]) for image in images])


def _column(analysis: Convergence, images: Sequence[Image]) -> dict[str, str]:
    spreads = {k: statistics.fmean(image.spread(k) for image in images) for k in analysis.steps}
    return {
        **{f"loss, {k} steps": _mean_loss(images, k).text(3) for k in analysis.steps},
        **{f"spread, {k} steps, %": f"{100 * spread:.2f}" for k, spread in spreads.items()},
        "long run: steps to 99 %": mean_of([image.steps_until_near() for image in images]).text(1),
        "images": str(len(images)),
    }


def _figures(analysis: Convergence, found: Sequence[tuple[str, Sequence[Image]]]) -> Iterator[Figure]:
    steps = sorted(analysis.steps)
    for name, images in found:
        lines = [
            Series(
                f"image {image.row}",
                tuple(map(float, steps)),
                tuple(statistics.fmean(image.final[k]) for k in steps),
                tuple(min(image.final[k]) for k in steps),
                tuple(max(image.final[k]) for k in steps),
            )
            for image in images[:MOST_LINES]
        ]
        title = f"{name}: final losses, range over starts"
        yield Curves(title, "PGD steps", "cross-entropy", tuple(lines), log_x=True)
        # the image whose loss moves most says most about the way there
        shown = max(images, key=lambda image: max(image.along[0]) - image.along[0][0])
        ways = [
            Series(f"start {at + 1}", tuple(map(float, range(len(way)))), tuple(way))
            for at, way in enumerate(shown.along[:MOST_LINES])
        ]
        title = f"{name}: image {shown.row} in runs of {analysis.long} steps"
        yield Curves(title, "step", "cross-entropy", tuple(ways))


def _remarks(analysis: Convergence, found: Sequence[tuple[str, Sequence[Image]]]) -> Iterator[str]:
    for name, images in found:
        best = max(analysis.steps, key=lambda k: _mean_loss(images, k).value)
        top = _mean_loss(images, best).value
        enough = min((k for k in analysis.steps if _mean_loss(images, k).value >= NEARLY * top), default=best)
        spread = statistics.fmean(image.spread(max(analysis.steps)) for image in images)
        if math.isfinite(top):
            yield (
                f"{name}: {enough} steps reach 99 % of the largest mean loss ({top:.3f}, at {best}); with "
                f"{max(analysis.steps)} steps the starts differ by {100 * spread:.1f} % on average"
            )
    yield "the paper: the largest loss needs 100 steps or more, and all starts end at very similar losses"
