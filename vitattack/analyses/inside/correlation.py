"""Correlation of the outputs of blocks with one another, over all tokens and over the class token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from vitattack.analyses.findings import Findings, Row
from vitattack.analyses.inside.matrices import Entry, matrix_figure, matrix_rows, matrix_table, widest
from vitattack.analyses.inside.probing import Probed, compared_blocks, open_all, outputs
from vitattack.analyses.inside.questions import Correlation
from vitattack.analyses.measures.correlation import correlation, correlation_interval, moments, pair_sums
from vitattack.analyses.run import AnalysisRun
from vitattack.models.blocks.tokens import Tokens, block_tokens

ALL, CLASS = "all", "class"
UPPER = np.triu_indices(6)


@dataclass(frozen=True)
class Subject:
    """A model with the blocks that are compared, and where the class token lies in the output of each, if anywhere."""

    probed: Probed
    blocks: tuple[str, ...]
    class_token: Mapping[str, int]


def correlate(analysis: Correlation, run: AnalysisRun) -> Findings:
    """Sum over all images, block by block, and correlate the sums."""
    subjects = []
    for probed in open_all(run):
        blocks = compared_blocks(probed)
        tokens: Mapping[str, Tokens | None] = {}
        if probed.layers.layers:
            tokens = block_tokens(probed.prepared.victim, blocks)
        at = {name: each.class_token for name, each in tokens.items() if each and each.class_token is not None}
        subjects.append(Subject(probed, tuple(blocks), at))
    rows: list[Row] = []
    tables, figures, remarks = [], [], []
    for subject in subjects:
        found = _measured(run, subject)
        for kind, entries in found.items():
            over = "all tokens" if kind == ALL else "the class token"
            title = f"{subject.probed.name}: |correlation| of blocks over {over}"
            rows += matrix_rows(entries, "correlation", model=subject.probed.name, tokens=kind)
            tables.append(matrix_table(title, entries, [f"95 % intervals are up to ±{widest(entries):.3f}"]))
            figures.append(matrix_figure(title, entries))
        remarks += _remarks(subject, found)
    return run.findings(rows, tables, figures, remarks)


def _measured(run: AnalysisRun, subject: Subject) -> dict[str, list[list[Entry | None]]]:
    def measure(x: Tensor, y: Tensor, rows: tuple[int, ...]) -> dict[str, Any]:
        features = outputs(subject.probed, subject.blocks, x)
        tokens = [
            feature[:, subject.class_token[name]] if name in subject.class_token else None
            for name, feature in zip(subject.blocks, features, strict=True)
        ]
        return {ALL: _sums(features), CLASS: _sums(tokens)}

    parts = run.over_batches(subject.probed.prepared, measure)
    found = {ALL: _entries(len(subject.blocks), [part[ALL] for part in parts])}
    if len(subject.class_token) > 1:
        found[CLASS] = _entries(len(subject.blocks), [part[CLASS] for part in parts])
    return found


def _sums(features: Sequence[Tensor | None]) -> dict[str, list[float]]:
    """Per pair of blocks of equal shape: the sums of a batch, and half of their outer products."""
    found = {}
    for i, one in enumerate(features):
        for j, two in enumerate(features[: i + 1]):
            if one is not None and two is not None and one.shape[1:] == two.shape[1:]:
                total, products = moments(pair_sums(one, two))
                found[f"{i},{j}"] = [*total.tolist(), *products[UPPER].tolist()]
    return found


def _entries(count: int, parts: Sequence[Mapping[str, Sequence[float]]]) -> list[list[Entry | None]]:
    entries: list[list[Entry | None]] = [[None] * count for _ in range(count)]
    for pair in parts[0]:
        summed = np.sum([part[pair] for part in parts], axis=0)
        total, products = summed[:6], np.zeros((6, 6))
        products[UPPER] = summed[6:]
        products = products + products.T - np.diag(np.diag(products))
        value = correlation(total)
        if math.isfinite(value):
            i, j = map(int, pair.split(","))
            entries[i][j] = entries[j][i] = Entry(value, *correlation_interval(total, products))
    return entries


def _remarks(subject: Subject, found: Mapping[str, list[list[Entry | None]]]) -> list[str]:
    name, said = subject.probed.name, []
    for kind, entries in found.items():
        steps = [entries[at][at + 1] for at in range(len(entries) - 1)]
        known = [step.value for step in steps if step is not None]
        over = "tokens" if kind == ALL else "class tokens"
        if len(known) > 1:
            half = len(known) // 2
            early, late = sum(known[:half]) / half, sum(known[half:]) / (len(known) - half)
            said.append(
                f"{name}: {over} of neighbouring blocks correlate by {early:.2f} in the first half and {late:.2f} in the second"
            )
    if CLASS not in found and subject.probed.layers.layers:
        said.append(
            f"{name}: no class token goes through its blocks, so that there is nothing to correlate but all tokens"
        )
    empty = sum(entry is None for row in found[ALL] for entry in row)
    if empty:
        said.append(f"{name}: blocks of different shape have no correlation, and cka compares them")
    return said
