"""Kernel alignment of the blocks of models, minibatch by minibatch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from vitattack.analyses.findings import Findings, Row
from vitattack.analyses.inside.matrices import Entry, matrix_figure, matrix_rows, matrix_table, widest
from vitattack.analyses.inside.probing import Probed, compared_blocks, open_all, outputs
from vitattack.analyses.inside.questions import Cka
from vitattack.analyses.measures.kernels import LEAST, Alignment, Array, alignments, features_tensor, gram
from vitattack.analyses.run import AnalysisRun
from vitattack.core.errors import UsageError
from vitattack.evaluation.batch_runner import read_batch
from vitattack.models.victim import model_digest

Side = tuple[Probed, Sequence[str]]


def align(analysis: Cka, run: AnalysisRun) -> Findings:
    """Align the blocks of each model with one another, and those of every two models."""
    sides = [(probed, compared_blocks(probed)) for probed in open_all(run)]
    if len(sides[0][0].prepared.images) < LEAST:
        raise UsageError(f"kernel alignment is of at least {LEAST} images: raise --limit")
    rows: list[Row] = []
    tables, figures, remarks = [], [], []
    for one, two in [*((side, side) for side in sides), *combinations(sides, 2)]:
        entries = _measured(analysis, run, one, two)
        names = (one[0].name, two[0].name)
        title = f"{names[0]}: CKA of its blocks" if one is two else f"CKA of {names[0]} (rows) and {names[1]} (columns)"
        rows += matrix_rows(entries, "cka", model=names[0], other=names[1])
        tables.append(matrix_table(title, entries, [f"95 % intervals are up to ±{widest(entries):.3f}"]))
        figures.append(matrix_figure(title, entries, names[0], names[1]))
        remarks += _remarks(names, entries, within=one is two)
    return run.findings(rows, tables, figures, remarks)


def minibatches(count: int, size: int) -> list[range]:
    """Positions of the images of each minibatch; a rest too small to be one by itself joins the last."""
    starts = list(range(0, count, size))
    if len(starts) > 1 and count - starts[-1] < LEAST:
        starts.pop()
    return [range(start, end) for start, end in zip(starts, [*starts[1:], count], strict=True)]


def _measured(analysis: Cka, run: AnalysisRun, one: Side, two: Side) -> list[list[Entry | None]]:
    prepared = one[0].prepared
    cuts = minibatches(len(prepared.images), analysis.minibatch)

    def make(number: int) -> dict[str, Any]:
        first = _grams(run, one, cuts[number])
        second = first if one is two else _grams(run, two, cuts[number])
        found = alignments(first, second)
        return {"images": len(cuts[number]), "sums": [[[*each.hsic, *each.spread] for each in row] for row in found]}

    label = one[0].name if one is two else f"{one[0].name} and {two[0].name}"
    other = None if one is two else model_digest(two[0].prepared.victim)
    parts = run.parts(prepared, len(cuts), make, f"cka of {label}", other=other)
    entries: list[list[Entry | None]] = []
    for i in range(len(one[1])):
        entries.append([_entry([_alignment(part, i, j) for part in parts]) for j in range(len(two[1]))])
    return entries


def _alignment(part: dict[str, Any], i: int, j: int) -> Alignment:
    numbers = [math.nan if value is None else value for value in part["sums"][i][j]]
    return Alignment(1, part["images"], (numbers[0], numbers[1], numbers[2]), tuple(numbers[3:]))


def _entry(parts: Sequence[Alignment]) -> Entry | None:
    total = sum(parts[1:], parts[0])
    return Entry(total.value, *total.interval) if math.isfinite(total.value) else None


def _grams(run: AnalysisRun, side: Side, positions: range) -> list[Array]:
    """The Gram matrices of one minibatch, whose features are read in batches."""
    probed, names = side
    prepared = probed.prepared
    rows = prepared.images.rows[positions.start : positions.stop]
    features: list[list[Any]] = [[] for _ in names]
    for at in range(0, len(rows), run.setup.batch_size):
        x, _, _ = read_batch(prepared.images, rows[at : at + run.setup.batch_size], prepared.victim, prepared.device)
        for kept, feature in zip(features, outputs(probed, names, x), strict=True):
            kept.append(feature.flatten(1))
    found = []
    while features:
        found.append(gram(features_tensor(features.pop(0))))
    return found


def _remarks(names: tuple[str, str], entries: Sequence[Sequence[Entry | None]], *, within: bool) -> list[str]:
    if within:
        steps = [(at, entries[at][at + 1]) for at in range(len(entries) - 1)]
        known = [(entry.value, at) for at, entry in steps if entry is not None]
        if not known:
            return []
        least, at = min(known)
        return [f"{names[0]}: neighbouring blocks are least alike between {at} and {at + 1} ({least:.2f})"]
    best = max((e.value, i, j) for i, row in enumerate(entries) for j, e in enumerate(row) if e is not None)
    return [f"{names[0]} and {names[1]}: most alike are block {best[1]} and block {best[2]} ({best[0]:.2f})"]
