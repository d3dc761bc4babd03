"""Gates of TORA-ViTs as maps: where either adapter has weight, and how the two differ on the same images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitattack.analyses.figure import Curves, Series
from vitattack.analyses.findings import Findings, Row
from vitattack.analyses.inside.map_measures import MEASURES, Mean, map_numbers, mean_of, sums_of
from vitattack.analyses.inside.map_numbers import Maker, map_findings
from vitattack.analyses.inside.masks import Masks
from vitattack.analyses.inside.probing import Probed, open_all
from vitattack.analyses.inside.questions import Gates
from vitattack.analyses.measures.heatmaps import enlarged
from vitattack.analyses.run import AnalysisRun
from vitattack.core.errors import UsageError
from vitattack.core.table import Table
from vitattack.models.architectures.tora import ToraViT
from vitattack.models.victim import Victim, frozen

ADAPTERS = {"acc": "accuracy", "rob": "robustness"}
DIFFERENCE = "accuracy - robustness"
WEIGHT = "weight"

Differences = Mapping[tuple[int, str], Mean]  # by block and measure


def gate_maps(analysis: Gates, run: AnalysisRun) -> Findings:
    """Measure the maps of both adapters of every model, and their differences image by image."""
    opened = [(probed, gated(probed)) for probed in open_all(run)]
    shown = {(probed.name, side): _shown(probed.name, side, len(opened)) for probed, _ in opened for side in ADAPTERS}
    makers = [_maker(probed, model, side, shown[probed.name, side]) for probed, model in opened for side in ADAPTERS]
    found = map_findings(analysis, run, makers, "weight in the gates")
    names = {text: (name, ADAPTERS[side]) for (name, side), text in shown.items()}
    rows: list[Row] = []
    for row in found.rows:
        name, adapter = names[str(row["model"])]
        rows.append({**row, "model": name, "adapter": adapter})
    tables, remarks, series = list(found.printed), list(found.remarks), []
    for probed, model in opened:
        means = _differences(analysis, run, probed, model)
        rows += [_row(probed.name, block, measure, mean) for (block, measure), mean in means.items()]
        tables.append(_table(probed.name, means))
        remarks.append(_remark(probed.name, means))
        series.append(_series(probed.name, means))
    weights = Curves("Weight of the accuracy adapter", "block", "mean gate", tuple(series))
    pictures = [figure for figure in found.figures if figure.title.endswith("first images")]
    others = [figure for figure in found.figures if figure not in pictures]
    return replace(
        found,
        models=tuple(probed.name for probed, _ in opened),
        rows=tuple(rows),
        printed=tuple(tables),
        figures=(*others, weights, *pictures),
        remarks=tuple(remarks),
    )


def gated(probed: Probed) -> ToraViT:
    """The TORA-ViT inside a model, refused if it has no gates."""
    for module in probed.prepared.victim.modules():
        if isinstance(module, ToraViT) and len(module.layers):
            return module
    raise UsageError(
        f"model '{probed.name}' has no gates between adapters: gates are of TORA-ViTs, such as arch=tora:small:tiny_vit_32"
    )


@torch.no_grad()
def accuracy_gates(victim: Victim, model: ToraViT, x: Tensor) -> list[Tensor]:
    """(B, rows, columns) of weights of the accuracy adapter's features for each block, a mean over queries."""
    found: list[Tensor] = []
    rows, columns = (int(side) for side in model.backbone.patch_embed.grid_size)

    def look(module: Any, given: Any, gate: Tensor) -> None:
        by_place = (
            gate.squeeze(-1) if gate.shape[-1] == 1 else gate.mean(1)
        )  # of the diagonal, a place has its own query
        found.append(by_place[:, -rows * columns :].reshape(len(x), rows, columns))

    hooks = [layer.fusion.gate.register_forward_hook(look) for layer in model.layers]  # type: ignore[union-attr]
    try:
        with frozen(victim):
            victim(x)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _shown(name: str, side: str, models: int) -> str:
    return ADAPTERS[side] if models == 1 else f"{name}, {ADAPTERS[side]}"


def _maker(probed: Probed, model: ToraViT, side: str, shown: str) -> Maker:
    victim = probed.prepared.victim

    def make(x: Tensor) -> list[Tensor]:
        maps = accuracy_gates(victim, model, x)
        return maps if side == "acc" else [1 - each for each in maps]

    labels = tuple(map(str, range(len(model.layers))))
    return Maker(probed._replace(name=shown), labels, side, make, True, {"adapter": side})


def _differences(analysis: Gates, run: AnalysisRun, probed: Probed, model: ToraViT) -> Differences:
    """How much more every measure is for the accuracy adapter, and its mean weight."""
    victim = probed.prepared.victim
    masks = None if analysis.masks is None else Masks(Path(analysis.masks))

    def measure(x: Tensor, y: Tensor, rows: tuple[int, ...]) -> dict[str, Any]:
        objects = None if masks is None else masks.of(rows)
        sums = {}
        for block, gates in enumerate(accuracy_gates(victim, model, x)):
            maps = enlarged(gates.cpu().double(), (int(x.shape[-2]), int(x.shape[-1])))
            one, other = map_numbers(maps, objects), map_numbers(1 - maps, objects)
            sums[str(block)] = {name: sums_of(one[name] - other[name]) for name in one}
            sums[str(block)][WEIGHT] = sums_of(gates.cpu().double().mean((1, 2)))
        return sums

    settings = {"adapter": DIFFERENCE, "masks": "none" if masks is None else masks.digest}
    totals: dict[tuple[int, str], list[float]] = {}
    for part in run.over_batches(probed.prepared, measure, **settings):
        for block, each in part.items():
            for name, sums in each.items():
                old = totals.get((int(block), name), [0.0, 0.0, 0.0])
                totals[int(block), name] = [a + b for a, b in zip(old, sums, strict=True)]
    return {key: mean_of(*sums) for key, sums in totals.items() if sums[0] > 0}


def _row(model: str, block: int, measure: str, mean: Mean) -> Row:
    adapter = ADAPTERS["acc"] if measure == WEIGHT else DIFFERENCE
    return {
        "model": model,
        "adapter": adapter,
        "block": str(block),
        "condition": "clean",
        "measure": measure,
        **mean._asdict(),
    }


def _blocks(means: Differences) -> list[int]:
    return sorted({block for block, _ in means})


def _table(name: str, means: Differences) -> Table:
    measures = [measure for measure in MEASURES if any(each == measure for _, each in means)]
    rows = [
        (str(block), *(means[block, each].text() if (block, each) in means else "" for each in (WEIGHT, *measures)))
        for block in _blocks(means)
    ]
    notes = ("weight: mean gate of the accuracy adapter; the rest: accuracy adapter less robustness adapter, clean",)
    return Table(f"{name}: how the two adapters differ", ("block", WEIGHT, *measures), rows, notes)


def _remark(name: str, means: Differences) -> str:
    """The poster's claim, that accuracy looks at the context and robustness at the object, as counts of blocks."""
    measure, more = ("on-mask", "robustness") if any(each == "on-mask" for _, each in means) else ("spread", "accuracy")
    found = [means[block, measure] for block in _blocks(means) if (block, measure) in means]
    higher = [mean.low > 0 for mean in found].count(True)
    lower = [mean.high < 0 for mean in found].count(True)
    agree, against = (higher, lower) if more == "accuracy" else (lower, higher)
    what = "lies on the object less" if measure == "on-mask" else "spreads wider"
    return (
        f"{name}: the accuracy adapter's weight {what} than the robustness adapter's, as the poster says, in {agree} of "
        f"{len(found)} blocks, the other way round in {against}, within sampling in {len(found) - agree - against}"
    )


def _series(name: str, means: Differences) -> Series:
    each = [means[block, WEIGHT] for block in _blocks(means)]
    return Series(
        name,
        tuple(map(float, _blocks(means))),
        tuple(mean.mean for mean in each),
        tuple(mean.low for mean in each),
        tuple(mean.high for mean in each),
    )
