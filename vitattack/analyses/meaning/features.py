"""Images that targeted attacks make of noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from vitattack.analyses.figure import Bars, Figure, Pictures, Series
from vitattack.analyses.findings import Findings, Row
from vitattack.analyses.intervals import Estimate, mean_of
from vitattack.analyses.meaning.questions import Features
from vitattack.analyses.pictures import png
from vitattack.analyses.run import AnalysisRun
from vitattack.analyses.strength.losses import REACH
from vitattack.analyses.tables import side_by_side
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.evaluation.prepare import Prepared
from vitattack.models.victim import Victim
from vitattack.threats.lp import LpBall

OWN, NOISE = "own confidence", "own confidence in the noise"
FIRST_CLASSES = 10


class Found(NamedTuple):
    """Numbers of each image made on one model, by what they are, and a picture for each class."""

    numbers: Mapping[str, Sequence[float]]
    pictures: Sequence[str]


def features(analysis: Features, run: AnalysisRun) -> Findings:
    """Make the images of every model and show them to the others."""
    opened = {name: run.open(model) for name, model in run.named}
    first = next(iter(opened.values()))
    count = first.victim.num_classes
    classes = analysis.classes or tuple(range(min(FIRST_CLASSES, count)))
    if max(classes) >= count:
        raise UsageError(f"class {max(classes)} does not exist: '{first.victim.name}' has {count}, from 0 on")
    if len({each.victim.size for each in opened.values()}) > 1:
        raise UsageError("these models take images of several sizes: name models of one")
    found = {name: _made(analysis, run, name, opened, classes) for name in opened}
    estimates = {name: {what: mean_of(values) for what, values in each.numbers.items()} for name, each in found.items()}
    rows: list[Row] = [
        {"model": name, "measure": what, **estimate._asdict(), "n": len(classes) * analysis.seeds}
        for name, each in estimates.items()
        for what, estimate in each.items()
    ]
    columns = {name: {what: e.text(1, 100) for what, e in each.items()} for name, each in estimates.items()}
    keys = list(dict.fromkeys(key for column in columns.values() for key in column))
    title = (
        f"Images of noise for {len(classes)} classes, {run.threat}, {analysis.steps} steps, in % with 95 % intervals"
    )
    notes = ["seen by: share of the images that another model puts into the class they were made for"]
    table = side_by_side(title, "", keys, columns, notes)
    return run.findings(rows, [table], _figures(found, estimates, _names(first, classes)), _remarks(estimates))


def _made(
    analysis: Features, run: AnalysisRun, name: str, opened: Mapping[str, Prepared], classes: Sequence[int]
) -> Found:
    prepared, ball = opened[name], run.ball
    others = {other: each.victim for other, each in opened.items() if other != name}
    victim = prepared.victim
    height, width = victim.size

    def make(number: int) -> dict[str, Any]:
        label = classes[number]
        rng = SampleRng(run.setup.seed, tuple(range(analysis.seeds))).child("noise", label)
        start = rng.uniform(torch.zeros(analysis.seeds, victim.channels, height, width)).to(prepared.device)
        y = torch.full((analysis.seeds,), label, device=prepared.device)
        images = towards(victim, ball, start, y, analysis.steps)
        with torch.no_grad():
            numbers = {NOISE: _confidence(victim, start, y), OWN: _confidence(victim, images, y)}
            seen = {
                f"seen by {other}": (each(images).argmax(1) == y).double().tolist() for other, each in others.items()
            }
        return {"numbers": {**numbers, **seen}, "picture": png(images[0])}

    digests = {other: opened[other].digests[0] for other in others}
    parts = run.parts(prepared, len(classes), make, f"features of {name}", others=digests, made=list(classes))
    keys = parts[0]["numbers"]
    numbers = {key: [value for part in parts for value in part["numbers"][key]] for key in keys}
    return Found(numbers, [part["picture"] for part in parts])


def towards(victim: Victim, ball: LpBall, start: Tensor, y: Tensor, steps: int) -> Tensor:
    """Images around `start` that the model puts into the classes `y`, after so many steps."""
    x = start
    for _ in range(steps):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (grad,) = torch.autograd.grad(cross_entropy(victim(x), y, reduction="sum"), x)
        x = ball.project(start, x.detach() - REACH / steps * ball.eps * ball.ascend(grad))
    return x.detach()


def _confidence(victim: Victim, x: Tensor, y: Tensor) -> list[float]:
    shares: list[float] = victim(x).double().softmax(1).gather(1, y[:, None])[:, 0].tolist()
    return shares


def _names(prepared: Prepared, classes: Sequence[int]) -> tuple[str, ...]:
    """A name for each class, its number where none is known."""
    known = prepared.images.class_aliases
    every = [min(known[label], key=len) if known and known[label] else f"class {label}" for label in classes]
    return tuple(every)


def _figures(
    found: Mapping[str, Found], estimates: Mapping[str, Mapping[str, Estimate]], names: Sequence[str]
) -> list[Figure]:
    groups = tuple(dict.fromkeys(key for each in estimates.values() for key in each if key != NOISE))
    series = []
    for name, each in estimates.items():
        values = [each.get(group) for group in groups]
        places = tuple(map(float, range(len(groups))))
        series.append(Series(name, places, tuple(None if e is None else e.value for e in values)))
    rows = [tuple(each.pictures) for each in found.values()]
    return [
        Bars("Images made of noise", "share", groups, tuple(series), percent=True),
        Pictures("One image for each class", tuple(found), tuple(names), tuple(rows)),
    ]


def _remarks(estimates: Mapping[str, Mapping[str, Estimate]]) -> list[str]:
    said = []
    for name, each in estimates.items():
        line = f"{name}: confident of its own images by {100 * each[OWN].value:.1f} % on average"
        seen = {key: estimate for key, estimate in each.items() if key not in (OWN, NOISE)}
        if seen:
            line += "; " + ", ".join(f"{100 * e.value:.1f} % are {key}" for key, e in seen.items())
        said.append(line)
    return said
