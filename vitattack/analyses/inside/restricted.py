"""Accuracies of a model whose attention sees part of the positions only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitattack.analyses.figure import Curves, Series
from vitattack.analyses.findings import Findings, Row
from vitattack.analyses.inside.probing import Probed, open_all
from vitattack.analyses.inside.questions import RestrictedAttention
from vitattack.analyses.run import AnalysisRun
from vitattack.analyses.tables import share_text, side_by_side
from vitattack.attacks.losses.base import is_correct
from vitattack.core.table import Table
from vitattack.models.blocks.restricted import (
    Allowed,
    Restricted,
    class_token_pairs,
    grid_layers,
    local_pairs,
    random_pairs,
    require_grid_layers,
)
from vitattack.models.blocks.tokens import Tokens
from vitattack.models.victim import frozen
from vitattack.records import stats
from vitattack.records.stats import Accuracy

LOCAL, RANDOM, FIRST, LAST = "local", "random", "class-first", "class-last"
Variant = tuple[str, int]  # a kind of restriction, and its distance or its number of blocks


@dataclass(frozen=True)
class Measured:
    """Accuracies of one model by restriction."""

    name: str
    tokens: Tokens
    accuracies: Mapping[Variant, Accuracy]
    whole: int  # the distance that restricts nothing

    def of(self, kind: str) -> dict[int, Accuracy]:
        found = {number: accuracy for (each, number), accuracy in self.accuracies.items() if each == kind}
        return dict(sorted(found.items()))

    @property
    def clean(self) -> Accuracy:
        return self.accuracies[(LOCAL, self.whole)]


def restrict(analysis: RestrictedAttention, run: AnalysisRun) -> Findings:
    """Measure every restriction of every model on the same images."""
    opened = open_all(run)
    grids = [grid_layers(probed.prepared.victim, probed.layers) for probed in opened]
    for probed, grid in zip(opened, grids, strict=True):
        require_grid_layers(probed.layers, grid, probed.name)
    found = [_measured(analysis, run, probed, grid) for probed, grid in zip(opened, grids, strict=True)]
    rows = [row for each in found for row in _rows(each)]
    remarks = [remark for each in found for remark in _remarks(each)]
    return run.findings(rows, _tables(found), _figures(found), remarks)


def restrictions(
    analysis: RestrictedAttention, probed: Probed, grid: Mapping[int, Tokens], seed: int
) -> dict[Variant, Allowed]:
    """Pairs of positions that each restriction allows, by layer; the whole grid is among them."""
    tokens = next(iter(grid.values()))
    whole = max(tokens.grid) - 1
    distances = {min(distance, whole) for distance in analysis.distances or range(whole)} | {whole}
    found: dict[Variant, Allowed] = {}
    for distance in sorted(distances):
        near = local_pairs(tokens, distance)
        found[(LOCAL, distance)] = dict.fromkeys(grid, near)
        if distance < whole:
            found[(RANDOM, distance)] = dict.fromkeys(grid, random_pairs(tokens, near, seed))
    own = class_token_pairs(tokens)
    blocks = list(dict.fromkeys(layer.block for layer in probed.layers.layers if layer.number in grid))
    for count in range(1, len(blocks) + 1):
        for kind, chosen in ((FIRST, blocks[:count]), (LAST, blocks[-count:])):
            numbers = [layer.number for layer in probed.layers.layers if layer.block in chosen and layer.number in grid]
            found[(kind, count)] = dict.fromkeys(numbers, own)
    return found


def _measured(analysis: RestrictedAttention, run: AnalysisRun, probed: Probed, grid: Mapping[int, Tokens]) -> Measured:
    wanted = restrictions(analysis, probed, grid, run.setup.seed)
    victim = probed.prepared.victim
    views = [Restricted(victim, probed.layers, allowed) for allowed in wanted.values()]

    def measure(x: Tensor, y: Tensor, rows: tuple[int, ...]) -> dict[str, Any]:
        with frozen(victim), torch.no_grad():
            return {"n": len(rows), "correct": [int(is_correct(view(x), y).sum()) for view in views]}

    parts = run.over_batches(probed.prepared, measure)
    n = sum(part["n"] for part in parts)
    correct = [sum(counts) for counts in zip(*(part["correct"] for part in parts), strict=True)]
    tokens = next(iter(grid.values()))
    shares = {variant: stats.share(count, n) for variant, count in zip(wanted, correct, strict=True)}
    return Measured(probed.name, tokens, shares, max(tokens.grid) - 1)


def _rows(found: Measured) -> list[Row]:
    about: dict[str, Any] = {"model": found.name}
    rows: list[Row] = []
    for (kind, number), accuracy in found.accuracies.items():
        where = {"distance": number} if kind in (LOCAL, RANDOM) else {"blocks": number}
        rows.append({**about, "restriction": kind, **where, **accuracy.json(), "n": accuracy.n})
    return rows


def _tables(found: Sequence[Measured]) -> list[Table]:
    random = "as many pairs of patches as within the distance, drawn once"
    return [
        _table(found, LOCAL, "Accuracy if patches see others up to a distance", "distance"),
        _table(found, RANDOM, "Accuracy if patches see as many others at random", "distance", random),
        _table(found, FIRST, "Accuracy if patches of the first n blocks see no other patches", "n"),
        _table(found, LAST, "Accuracy if patches of the last n blocks see no other patches", "n"),
    ]


def _table(found: Sequence[Measured], kind: str, title: str, head: str, *notes: str) -> Table:
    columns = {each.name: {str(at): share_text(accuracy) for at, accuracy in each.of(kind).items()} for each in found}
    keys = sorted({at for each in found for at in each.of(kind)})
    return side_by_side(f"{title}, in %", head, [*map(str, keys)], columns, notes)


def _figures(found: Sequence[Measured]) -> list[Curves]:
    distance = [_series(f"{each.name}, {kind}", each.of(kind)) for each in found for kind in (LOCAL, RANDOM)]
    blocks = [
        _series(f"{each.name}, {head}", each.of(kind))
        for each in found
        for kind, head in ((FIRST, "first blocks"), (LAST, "last blocks"))
    ]
    return [
        Curves("Attention up to a distance", "distance in patches", "accuracy", tuple(distance), percent=True),
        Curves("No attention between patches", "number of blocks", "accuracy", tuple(blocks), percent=True),
    ]


def _series(name: str, points: Mapping[int, Accuracy]) -> Series:
    return Series(
        name,
        tuple(map(float, points)),
        tuple(accuracy.accuracy for accuracy in points.values()),
        tuple(accuracy.low for accuracy in points.values()),
        tuple(accuracy.high for accuracy in points.values()),
    )


def _remarks(found: Measured) -> list[str]:
    said = []
    local, control = found.of(LOCAL), found.of(RANDOM)
    gaps = {d: local[d].accuracy - control[d].accuracy for d in control if d > 0}
    if gaps:
        d = min(gaps)
        said.append(
            f"{found.name}: attention to patches up to {d} away leaves {100 * local[d].accuracy:.1f} % of "
            f"{100 * found.clean.accuracy:.1f} %, as many random pairs {100 * control[d].accuracy:.1f} %"
        )
    first, last = found.of(FIRST), found.of(LAST)
    half = max(1, len(first) // 2)
    said.append(
        f"{found.name}: without attention between patches, the first {half} blocks leave {100 * first[half].accuracy:.1f} %, "
        f"the last {half} {100 * last[half].accuracy:.1f} %"
    )
    if not found.tokens.prefix:
        said.append(f"{found.name}: it has no class token, so that patches of these blocks see themselves alone")
    return said
