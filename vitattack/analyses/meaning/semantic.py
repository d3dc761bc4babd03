"""Perturbations classified as images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitattack.analyses.curves import bars_of
from vitattack.analyses.figure import Bars, Figure, Pictures
from vitattack.analyses.findings import Findings, Row
from vitattack.analyses.meaning.questions import Semantic
from vitattack.analyses.pictures import png
from vitattack.analyses.run import AnalysisRun
from vitattack.analyses.strength.losses import perturbed
from vitattack.analyses.tables import share_text, side_by_side
from vitattack.bench.read.benchmark_file import read_benchmark
from vitattack.bench.schema import CLEAN
from vitattack.core.errors import UsageError
from vitattack.core.percent import percent
from vitattack.core.table import Table
from vitattack.evaluation.prepare import Prepared
from vitattack.records import stats
from vitattack.records.stats import Accuracy

POSITIVE, NEGATIVE = "+delta", "-delta"
SIGNS = {NEGATIVE: -1.0, POSITIVE: 1.0}
MANY_CLASSES = 100


class Found(NamedTuple):
    """What judges say of one model's perturbations, by judge and sign, and pictures of the first images."""

    judged: Mapping[tuple[str, str], Accuracy]
    pictures: Sequence[Mapping[str, str]]


def semantic(analysis: Semantic, run: AnalysisRun) -> Findings:
    """Perturb the images on every model, and show the perturbations to the judges."""
    if run.ball.norm != "linf":
        raise UsageError(
            "semantic is of linf balls, whose perturbations fill [0,1] when scaled: write --threat linf:4/255"
        )
    opened = {name: run.open(model) for name, model in run.named}
    judges = {name: opened.get(name) or run.open(name) for name in analysis.judges or opened}
    if not analysis.judges and len(judges) < 2:
        raise UsageError("there is no other model to judge: name a second one, or judges=tiny-vit-standard")
    first = next(iter(opened.values()))
    for name, prepared in (*opened.items(), *judges.items()):
        if prepared.victim.size != first.victim.size:
            raise UsageError(
                f"'{name}' takes {prepared.victim.size_in_words}, '{first.victim.name}' other sizes: name models of one"
            )
    classes = first.victim.num_classes
    top = analysis.top or (5 if classes >= MANY_CLASSES else 1)
    if top >= classes:
        raise UsageError(f"top={top} holds all of {classes} classes: use fewer")
    found = {}
    for name, prepared in opened.items():
        others = {judge: each for judge, each in judges.items() if judge != name}
        found[name] = _measured(analysis, run, prepared, others, top)
    chance = top / classes
    return run.findings(
        _rows(found, top, chance), _tables(found, top, chance), _figures(found, top), _remarks(found, chance)
    )


def _measured(
    analysis: Semantic, run: AnalysisRun, prepared: Prepared, judges: Mapping[str, Prepared], top: int
) -> Found:
    ball, victim = run.ball, prepared.victim
    shown = set(prepared.images.rows[: analysis.pictures])

    def measure(x: Tensor, y: Tensor, rows: tuple[int, ...]) -> dict[str, Any]:
        delta = perturbed(victim, ball, x, y, analysis.steps, run.rng(rows, "perturbation")) - x
        images = {sign: as_image(factor * delta, ball.eps) for sign, factor in SIGNS.items()}
        hits = {}
        for judge, each in judges.items():
            for sign, image in images.items():
                with torch.no_grad():
                    first = each.victim(image).topk(top, dim=1).indices
                hits[f"{judge}|{sign}"] = int((first == y[:, None]).any(1).sum())
        drawn = [
            {"image": png(x[at]), **{sign: png(image[at]) for sign, image in images.items()}}
            for at, row in enumerate(rows)
            if row in shown
        ]
        return {"n": len(rows), "hits": hits, "pictures": drawn}

    digests = {judge: each.digests[0] for judge, each in judges.items()}
    parts = run.over_batches(prepared, measure, judges=digests, top=top)
    n = sum(part["n"] for part in parts)
    judged = {
        (judge, sign): stats.share(sum(part["hits"][f"{judge}|{sign}"] for part in parts), n)
        for judge in judges
        for sign in SIGNS
    }
    return Found(judged, [picture for part in parts for picture in part["pictures"]])


def as_image(delta: Tensor, eps: float) -> Tensor:
    """A perturbation scaled from [-eps, eps] to [0,1], in steps of 8 bits."""
    return (((delta + eps) / (2 * eps)).clamp(0, 1) * 255).round() / 255


def _rows(found: Mapping[str, Found], top: int, chance: float) -> list[Row]:
    return [
        {"model": name, "judge": judge, "sign": sign, "top": top, "chance": chance, **accuracy.json(), "n": accuracy.n}
        for name, each in found.items()
        for (judge, sign), accuracy in each.judged.items()
    ]


def _tables(found: Mapping[str, Found], top: int, chance: float) -> list[Table]:
    columns = {
        name: {f"{judge}, {sign}": share_text(accuracy) for (judge, sign), accuracy in each.judged.items()}
        for name, each in found.items()
    }
    keys = list(dict.fromkeys(key for column in columns.values() for key in column))
    title = f"Perturbations classified as the class they evade, top-{top}, in % with 95 % intervals"
    note = f"columns: models that were attacked; rows: judges; chance: {percent(chance)}"
    paper = read_benchmark("light-table8", check_attacks=False)
    published = [each for each in paper.reference if each.attack != CLEAN]
    by_judge: dict[str, dict[str, str]] = {}
    for each in published:
        by_judge.setdefault(each.attack, {})[each.model] = f"{each.value:.1f}"
    attacked = list(dict.fromkeys(each.model for each in published))
    other = side_by_side(f"Published: {paper.source}, {published[0].threat}, in %", "model", attacked, by_judge)
    return [side_by_side(title, "judge", keys, columns, [note]), other]


def _figures(found: Mapping[str, Found], top: int) -> list[Figure]:
    groups = tuple(found)
    keys = list(dict.fromkeys(key for each in found.values() for key in each.judged))
    series = []
    for judge, sign in keys:
        each = [found[name].judged.get((judge, sign)) for name in groups]
        series.append(bars_of(f"{judge}, {sign}", each))
    title = f"Perturbations seen as the evaded class, top-{top}"
    figures: list[Figure] = [Bars(title, "seen by each judge", groups, tuple(series), percent=True)]
    pictures = [each.pictures for each in found.values()]
    if pictures and pictures[0]:
        columns = ("image", *(f"{name}, {sign}" for name in groups for sign in SIGNS))
        rows = [
            (pictures[0][at]["image"], *(each[at][sign] for each in pictures for sign in SIGNS))
            for at in range(len(pictures[0]))
        ]
        figures.append(Pictures("Perturbations of the first images", ("",) * len(rows), columns, tuple(rows)))
    return figures


def _remarks(found: Mapping[str, Found], chance: float) -> list[str]:
    said = []
    for name, each in found.items():
        best, accuracy = max(
            ((judge, a) for (judge, sign), a in each.judged.items() if sign == NEGATIVE),
            key=lambda pair: pair[1].accuracy,
        )
        verdict = "more often than by chance" if accuracy.low > chance else "not clearly more often than by chance"
        said.append(
            f"{name}: its perturbations are seen as the evaded class {verdict} ({percent(accuracy.accuracy)} by {best})"
        )
    return said
