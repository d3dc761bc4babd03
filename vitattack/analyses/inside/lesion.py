"""Accuracies of a model without some of its residual branches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitattack.analyses.figure import Curves, Series
from vitattack.analyses.findings import Findings, Row
from vitattack.analyses.inside.probing import Probed, open_all
from vitattack.analyses.inside.questions import Lesion
from vitattack.analyses.run import AnalysisRun
from vitattack.analyses.tables import share_text, side_by_side
from vitattack.attacks.losses.base import is_correct
from vitattack.core.table import Table
from vitattack.models.blocks.names import Part
from vitattack.models.blocks.residual import Block, Lesioned, Removal, require_branches, residual_blocks
from vitattack.models.victim import frozen
from vitattack.records import stats
from vitattack.records.stats import Accuracy

Chosen = tuple[str, tuple[int, ...]]  # a part, and the numbers of the blocks it is taken out of
WHOLE: Chosen = ("block", ())
IN_WORDS: Mapping[str, str] = {"attention": "attention", "mlp": "MLP", "block": "block"}


@dataclass(frozen=True)
class Drawn:
    """Accuracies over several draws of equally many blocks."""

    removed: int
    each: tuple[float, ...]

    @property
    def mean(self) -> float:
        return fmean(self.each)

    @property
    def error(self) -> float:
        """The standard error of the mean over draws."""
        return stdev(self.each) / math.sqrt(len(self.each)) if len(self.each) > 1 else 0.0

    def text(self) -> str:
        return f"{100 * self.mean:.1f} ±{100 * self.error:.1f} ({100 * min(self.each):.1f}-{100 * max(self.each):.1f})"


@dataclass(frozen=True)
class Lesions:
    """What was measured on one model."""

    name: str
    blocks: tuple[Block, ...]
    accuracies: Mapping[Chosen, Accuracy]
    draws: Mapping[int, Sequence[tuple[int, ...]]]

    @property
    def clean(self) -> Accuracy:
        return self.accuracies[WHOLE]

    def single(self, part: str) -> list[tuple[int, Accuracy]]:
        """Accuracies without one part, by block; blocks that have no such part are left out."""
        alone = [(block.number, self.accuracies.get((part, (block.number,)))) for block in self.blocks]
        return [(number, accuracy) for number, accuracy in alone if accuracy is not None]

    def drawn(self, part: str) -> list[Drawn]:
        found = []
        for count, draws in self.draws.items():
            known = [self.accuracies[(part, chosen)].accuracy for chosen in draws if (part, chosen) in self.accuracies]
            if known:
                found.append(Drawn(count, tuple(known)))
        return found


def lesion(analysis: Lesion, run: AnalysisRun) -> Findings:
    """Measure every lesion of every model on the same images."""
    opened = open_all(run)
    blocks = []
    for probed in opened:
        blocks.append(residual_blocks(probed.prepared.victim, probed.first, probed.layers))
        require_branches(blocks[-1], probed.name)
    found = [_measured(analysis, run, probed, each) for probed, each in zip(opened, blocks, strict=True)]
    remarks = [remark for each in found for remark in _remarks(each)]
    figures = [figure for part in analysis.parts for figure in _figures(part, found)]
    return run.findings([row for each in found for row in _rows(each)], _tables(analysis, found), figures, remarks)


def draws_of(analysis: Lesion, blocks: int, seed: int) -> dict[int, list[tuple[int, ...]]]:
    """Blocks drawn for each number of them, the first block never among them."""
    if not analysis.draws:
        return {}
    counts = [count for count in (analysis.counts or range(1, blocks)) if count < blocks]
    found = {}
    for count in counts:
        generator = np.random.Generator(np.random.Philox(key=[seed, count]))
        draws = (generator.choice(blocks - 1, count, replace=False) + 1 for _ in range(analysis.draws))
        found[count] = [tuple(sorted(int(number) for number in draw)) for draw in draws]
    return found


def variants(
    analysis: Lesion, blocks: Sequence[Block], draws: Mapping[int, Sequence[tuple[int, ...]]]
) -> dict[Chosen, frozenset[Removal]]:
    """Every lesion, once; the first is of nothing. Those of blocks without such a part are left out."""
    wanted = [(block.number,) for block in blocks] + [chosen for each in draws.values() for chosen in each]
    found: dict[Chosen, frozenset[Removal]] = {WHOLE: frozenset()}
    for part in analysis.parts:
        for chosen in wanted:
            each = [blocks[number].removals(_part(part)) for number in chosen]
            if all(each):
                found[(part, chosen)] = frozenset().union(*each)
    return found


def _part(name: str) -> Part:
    return name  # type: ignore[return-value]


def _measured(analysis: Lesion, run: AnalysisRun, probed: Probed, blocks: tuple[Block, ...]) -> Lesions:
    draws = draws_of(analysis, len(blocks), run.setup.seed)
    wanted = variants(analysis, blocks, draws)
    victim = probed.prepared.victim

    def measure(x: Tensor, y: Tensor, rows: tuple[int, ...]) -> dict[str, object]:
        with frozen(victim), torch.no_grad():
            return {
                "n": len(rows),
                "correct": [
                    int(is_correct(Lesioned(victim, removed)(x), y).sum()) if removed else _plain(victim, x, y)
                    for removed in wanted.values()
                ],
            }

    parts = run.over_batches(probed.prepared, measure)
    n = sum(part["n"] for part in parts)
    correct = [sum(counts) for counts in zip(*(part["correct"] for part in parts), strict=True)]
    shares = {chosen: stats.share(count, n) for chosen, count in zip(wanted, correct, strict=True)}
    return Lesions(probed.name, blocks, shares, draws)


def _plain(victim: torch.nn.Module, x: Tensor, y: Tensor) -> int:
    return int(is_correct(victim(x), y).sum())


def _rows(found: Lesions) -> list[Row]:
    rows: list[Row] = [{"model": found.name, "part": "", "removed": 0, **found.clean.json(), "n": found.clean.n}]
    for part in dict.fromkeys(part for part, chosen in found.accuracies if chosen):
        for number, accuracy in found.single(part):
            about: dict[str, Any] = {"model": found.name, "part": part, "removed": 1, "block": number}
            rows.append({**about, "name": found.blocks[number].name, **accuracy.json(), "n": accuracy.n})
        for drawn in found.drawn(part):
            about = {"model": found.name, "part": part, "removed": drawn.removed, "draws": len(drawn.each)}
            spread = {"se": drawn.error, "min": min(drawn.each), "max": max(drawn.each)}
            rows.append({**about, "accuracy": drawn.mean, **spread, "n": found.clean.n})
    return rows


def _tables(analysis: Lesion, found: Sequence[Lesions]) -> list[Table]:
    tables = []
    deepest = max(len(each.blocks) for each in found)
    for part in analysis.parts:
        columns = {each.name: {"none": share_text(each.clean)} for each in found}
        for each in found:
            columns[each.name] |= {str(number): share_text(accuracy) for number, accuracy in each.single(part)}
        keys = ["none", *map(str, range(deepest))]
        title = f"Accuracy without the {IN_WORDS[part]} of one block, in % with 95 % intervals"
        tables.append(side_by_side(title.replace("the block of one block", "one block"), "block", keys, columns))
        drawn = {each.name: {str(d.removed): d.text() for d in each.drawn(part)} for each in found}
        counts = [key for key in map(str, range(1, deepest)) if any(key in column for column in drawn.values())]
        if counts:
            what = "blocks" if part == "block" else f"blocks without {IN_WORDS[part]}"
            title = f"Accuracy with n random {what} removed" if part == "block" else f"Accuracy with n random {what}"
            note = f"mean over {analysis.draws} draws ± its standard error (least-most); block 0 is always kept"
            tables.append(side_by_side(f"{title}, in %", "n", counts, drawn, [note]))
    return tables


def _figures(part: str, found: Sequence[Lesions]) -> list[Curves]:
    single = [_curve(each.name, each.single(part)) for each in found]
    whole = [Series(f"{each.name}, whole", *_flat(each), reference=True) for each in found]
    title = "Without one block" if part == "block" else f"Without the {IN_WORDS[part]} of one block"
    figures = [Curves(title, "block", "accuracy", (*single, *whole), percent=True)]
    drawn = [(each.name, each.drawn(part)) for each in found]
    if any(draws for _, draws in drawn):
        what = "blocks" if part == "block" else f"{IN_WORDS[part]} branches"
        series = tuple(
            Series(
                f"{name} (mean, least to most)",
                tuple(float(draw.removed) for draw in draws),
                tuple(draw.mean for draw in draws),
                tuple(min(draw.each) for draw in draws),
                tuple(max(draw.each) for draw in draws),
            )
            for name, draws in drawn
        )
        figures.append(Curves(f"Without n random {what}", "n", "accuracy", series, percent=True))
    return figures


def _curve(name: str, points: Sequence[tuple[int, Accuracy]]) -> Series:
    return Series(
        name,
        tuple(float(number) for number, _ in points),
        tuple(accuracy.accuracy for _, accuracy in points),
        tuple(accuracy.low for _, accuracy in points),
        tuple(accuracy.high for _, accuracy in points),
    )


def _flat(each: Lesions) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return (0.0, float(len(each.blocks) - 1)), (each.clean.accuracy, each.clean.accuracy)


def _remarks(found: Lesions) -> list[str]:
    said = []
    clean = 100 * found.clean.accuracy
    rest = [accuracy.accuracy for number, accuracy in found.single("block") if number > 0]
    first = found.accuracies.get(("block", (0,)))
    if rest and first is not None:
        said.append(
            f"{found.name}: {clean:.1f} % whole, {100 * first.accuracy:.1f} % without the first block, "
            f"{100 * min(rest):.1f} to {100 * max(rest):.1f} % without another one"
        )
    pairs = {draw.removed: draw for draw in found.drawn("mlp")}
    both = [(draw, pairs[draw.removed]) for draw in found.drawn("attention") if draw.removed in pairs]
    if both:
        attention, mlp = both[(len(both) - 1) // 2]
        gap = attention.mean - mlp.mean
        images = [math.sqrt(draw.mean * (1 - draw.mean) / found.clean.n) for draw in (attention, mlp)]
        clear = abs(gap) > 2 * math.hypot(attention.error, mlp.error, *images)
        verdict = (
            ("attention matters more, as in the paper" if gap < 0 else "MLPs matter more, unlike in the paper")
            if clear
            else "which matters more cannot be told"
        )
        said.append(
            f"{found.name}: {attention.removed} random attention branches removed leave {100 * attention.mean:.1f} %, "
            f"as many MLPs {100 * mlp.mean:.1f} %: {verdict}"
        )
    lacking = sorted({part for part in ("attention", "mlp") if len(found.single(part)) < len(found.blocks)})
    if lacking and any(chosen for _, chosen in found.accuracies):
        shown = [part for part in lacking if any(p == part for p, _ in found.accuracies)]
        said += [
            f"{found.name}: {len(found.single(part))} of {len(found.blocks)} blocks have a branch of {IN_WORDS[part]}"
            for part in shown
        ]
    return said
