"""Curves and maps, each computed here once: pages and plots draw the same numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vitattack.core.errors import UsageError
from vitattack.records.stats import Accuracy
from vitattack.report.overview.overview import ImageSet
from vitattack.report.overview.run import ShownRun
from vitattack.report.overview.samples import Column
from vitattack.text.syntax import Call, Node, node_text, parse_syntax
from vitattack.threats.base import parse_threat
from vitattack.threats.lp import LpBall

MOST_STEPS = 160  # of a curve: more cannot be told apart on a page
REFEREE = {
    "clean_orig": "clean, plain model",
    "clean_scaled": "clean, scaled model",
    "RA_base_orig": "base attack",
    "RA_aas_orig": "through scaled attention",
    "RA_union_orig": "both together",
    "RA_aas_scaled": "scaled-model protocol",
    "RA_scaled_examples_orig": "those examples, plain model",
}


@dataclass(frozen=True)
class Curve:
    """Points of a line; `low` and `high` are the intervals of the points, where they have any."""

    model: str
    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True)
class Stage:
    """What a stage of an attack tried, broke and spent; None where the store only holds what it broke."""

    name: str
    broke: int
    tried: int | None = None
    passes: int | None = None


@dataclass(frozen=True)
class TransferMap:
    """Accuracy of targets on candidates crafted on sources; None for pairs that are not stored."""

    attack: str
    threat: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    cells: tuple[tuple[Accuracy | None, ...], ...]  # a row per source


@dataclass(frozen=True)
class SpatialMap:
    """How many images fell to each shift, and to each angle, as the transform that made the stored candidate."""

    tx: tuple[float, ...]
    ty: tuple[float, ...]
    counts: tuple[tuple[int, ...], ...]  # a row per ty
    angles: tuple[float, ...]
    by_angle: tuple[int, ...]


def survivors_by_passes(run: ShownRun) -> Curve:
    """The share of all images still classified correctly, by the passes that were spent on each."""
    samples = run.samples
    attacked = samples.attacked
    spent = samples.passes[attacked & samples.fooled]
    last = float(samples.passes[attacked].max()) if attacked.any() else 1.0
    return _falling(run, spent, int((samples.robust | (attacked & samples.fooled)).sum()), max(1.0, last))


def survivors_by_distance(run: ShownRun) -> Curve | None:
    """The same by the size of the change, for attacks that look for the smallest; None for others."""
    samples = run.samples
    found = samples.attacked & samples.fooled & np.isfinite(samples.distance)
    if not found.any():
        return None
    standing = int((samples.robust | (samples.attacked & samples.fooled)).sum())
    ball = _ball(run.job.threat)
    end = ball.eps if ball else float(samples.distance[found].max())
    return _falling(run, samples.distance[found], standing, end, start=0.0)


def _falling(run: ShownRun, falls: Column, standing: int, end: float, start: float = 1.0) -> Curve:
    """A line that falls by one image at each of `falls`, thinned where steps are too many to be seen."""
    places, counts = np.unique(np.asarray(falls, np.float64), return_counts=True)
    left = standing - np.cumsum(counts)
    if len(places) > MOST_STEPS:  # keep the steps at equal heights
        kept = np.unique(np.searchsorted(-left, -np.linspace(left[0], left[-1], MOST_STEPS)).clip(0, len(left) - 1))
        places, left = places[kept], left[kept]
    x = [min(start, *map(float, places)) if len(places) else start, *map(float, places)]
    y = [float(standing), *map(float, left)]
    if end > x[-1]:
        x, y = [*x, end], [*y, y[-1]]
    share = tuple(value / max(1, run.n) for value in y)
    return Curve(run.job.model, run.attack, tuple(round(value, 6) for value in x), share)


def accuracy_by_budget(images: ImageSet) -> dict[str, list[Curve]]:
    """By norm, a line per model and attack with at least two budgets, without the runs of transferred candidates."""
    lines: dict[tuple[str, str, str, str], dict[float, ShownRun]] = {}
    for run in images.runs:
        ball = _ball(run.job.threat)
        if ball is not None:
            place = (ball.norm, run.job.model, run.job.weights, run.job.attack)
            lines.setdefault(place, {}).setdefault(ball.eps, run)
    found: dict[str, list[Curve]] = {}
    for (norm, model, _, _), by_eps in lines.items():
        if len(by_eps) > 1:
            ordered = [by_eps[eps] for eps in sorted(by_eps)]
            points = [ordered[0].clean, *(run.robust for run in ordered)]
            curve = Curve(
                model,
                ordered[0].attack,
                x=(0.0, *sorted(by_eps)),
                y=tuple(point.accuracy for point in points),
                low=tuple(point.low for point in points),
                high=tuple(point.high for point in points),
            )
            found.setdefault(norm, []).append(curve)
    return found


def _ball(threat: str) -> LpBall | None:
    try:
        parsed = parse_threat(threat)
    except UsageError:  # of a plug-in that is not installed here
        return None
    return parsed if isinstance(parsed, LpBall) else None


def stages_of(run: ShownRun) -> list[Stage]:
    """The stages of a run that did anything, in order."""
    auto = run.section("auto")
    if auto is not None:
        bought = auto.content.get("bought", [])
        return [Stage(str(s["stage"]), int(s["broke"]), int(s["tried"]), int(s["passes"])) for s in bought]
    section = run.section("stages")
    return [Stage(name, int(count)) for name, count in section.content.items()] if section else []


def referee_of(run: ShownRun) -> list[tuple[str, Accuracy]]:
    """The accuracies of an AAS run, on the plain model and on the scaled one."""
    section = run.section("referee")
    if section is None:
        return []
    found = []
    for key, name in REFEREE.items():
        values = section.content.get(key)
        if values:
            share, low, high = (float(values[each]) for each in ("accuracy", "low", "high"))
            found.append((name, Accuracy(share, low, high, int(values["correct"]), run.n)))
    return found


def transfer_maps(images: ImageSet) -> list[TransferMap]:
    """A matrix for each attack and threat whose candidates of some model were judged on another."""
    crossed: dict[tuple[str, str], dict[tuple[str, str], Accuracy]] = {}
    white_box = {(run.job.model, run.job.attack, run.job.threat): run.robust for run in images.runs}
    for run in images.runs:
        pair = transferred(run.job.attack)
        if pair is not None:
            source, attack = pair
            crossed.setdefault((attack, run.job.threat), {})[source, run.job.model] = run.robust
    maps = []
    for (attack, threat), cells in crossed.items():
        names = tuple(dict.fromkeys(name for pair in cells for name in pair))
        for name in names:
            own = white_box.get((name, attack, threat))
            if own is not None:
                cells.setdefault((name, name), own)
        sources, targets = (tuple(n for n in names if any(pair[end] == n for pair in cells)) for end in (0, 1))
        rows = tuple(tuple(cells.get((source, target)) for target in targets) for source in sources)
        maps.append(TransferMap(attack, threat, sources, targets, rows))
    return maps


def transferred(attack: str) -> tuple[str, str] | None:
    """The source and the inner attack of a text that transfers candidates."""
    try:
        root: Node = parse_syntax(attack)
    except UsageError:
        return None
    match root:
        case Call("transfer", (str(source), Call() as inner, *_)):
            return source, node_text(inner)
    return None


def spatial_map(run: ShownRun) -> SpatialMap | None:
    """Shifts and angles that fooled images, for spatial attacks."""
    samples = run.samples
    fooled = samples.attacked & samples.fooled
    if not samples.moves or not fooled.any():
        return None
    tx, ty, angle = (np.round(np.nan_to_num(samples.moves[name][fooled]), 4) for name in ("tx", "ty", "angle"))
    columns, rows, angles = (_grid(values) for values in (tx, ty, angle))
    counts = tuple(tuple(int(((tx == a) & (ty == b)).sum()) for a in columns) for b in rows)
    return SpatialMap(columns, rows, counts, angles, tuple(int((angle == a).sum()) for a in angles))


def _grid(values: Column) -> tuple[float, ...]:
    return tuple(float(value) for value in np.unique(values))
