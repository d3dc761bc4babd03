"""Accuracies under every corruption, of published images or of images made as they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitattack.analyses.figure import Curves, Figure, Heat, Series
from vitattack.analyses.findings import Findings, Row
from vitattack.analyses.intervals import Estimate
from vitattack.analyses.run import AnalysisRun, Model
from vitattack.analyses.shifts.means import GROUPS, Right, corruption_error, mean_accuracy, share_of_images
from vitattack.analyses.shifts.published import published_table, reported_table
from vitattack.analyses.shifts.questions import Corruptions
from vitattack.analyses.shifts.sets import Corruption
from vitattack.analyses.tables import side_by_side
from vitattack.attacks.losses.base import is_correct
from vitattack.core.table import Table
from vitattack.data.corruptions.names import MISSING
from vitattack.data.dataset import corrupted
from vitattack.data.labels.other_sets import CORRUPTIONS, EXTRA_CORRUPTIONS
from vitattack.evaluation.prepare import Prepared

CLEAN = "clean"


@dataclass(frozen=True)
class Measured:
    """Which images one model classifies correctly, clean where these are known, and under each corruption."""

    name: str
    clean: np.ndarray | None
    right: Right

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(kind for kind, _ in self.right))

    @property
    def severities(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(severity for _, severity in self.right))

    def of(self, kinds: Sequence[str], severities: Sequence[int]) -> Estimate:
        found = mean_accuracy(self.right, kinds, severities)
        assert found is not None, "asked for what was measured"
        return found

    def summary(self) -> dict[str, Estimate]:
        """The clean accuracy and the means that are defined on what was measured."""
        every = (*CORRUPTIONS, *EXTRA_CORRUPTIONS)
        found: dict[str, Estimate | None] = {
            CLEAN: None if self.clean is None else share_of_images(self.clean),
            "mean of all": self.of(self.kinds, self.severities),
            "acc-75": mean_accuracy(self.right, CORRUPTIONS),
            "acc-95": mean_accuracy(self.right, every),
        }
        for group, members in GROUPS.items():
            found[group] = mean_accuracy(self.right, [k for k in members if k in self.kinds], self.severities)
        return {name: estimate for name, estimate in found.items() if estimate is not None}


def corruptions(analysis: Corruptions, run: AnalysisRun) -> Findings:
    """Measure every model under every corruption."""
    data = run.data_text
    sets = analysis.published(data, run.setup.data_folder) if data is not None else ()
    found, errors = [], {}
    for name, model in run.named:
        measured = Measured(name, *(_published(run, model, sets) if sets else _made(analysis, run, model)))
        found.append(measured)
        error = corruption_error(measured.right) if sets and sets[0].text.startswith("imagenet-c/") else None
        if error is not None:
            errors[name] = error
    rows = [row for each in found for row in _rows(each, errors.get(each.name))]
    tables = _tables(found, errors)
    if sets and sets[0].text.startswith("imagenet-c/"):
        tables += [
            published_table("Published acc-95", ["bhojanapalli-table3-c"]),
            reported_table("Published mCE", "mce"),
        ]
    return run.findings(rows, tables, _figures(found), _remarks(found, made_here=not sets))


def _made(analysis: Corruptions, run: AnalysisRun, model: Model) -> tuple[np.ndarray | None, Right]:
    wanted = analysis.made_here()
    prepared = run.open(model)
    clean = _right(run, prepared, CLEAN)
    right = {}
    for kind, severity, _ in wanted:
        images = corrupted(prepared.images, kind, severity)
        right[(kind, severity)] = _right(run, prepared.with_images(images), f"{kind} {severity}")
    return clean, right


def _published(run: AnalysisRun, model: Model, sets: Sequence[Corruption]) -> tuple[np.ndarray | None, Right]:
    first = run.open(model, sets[0].text)
    right = {}
    for kind, severity, text in sets:
        prepared = first if text == sets[0].text else run.other_images(model, first, text)
        right[(kind, severity)] = _right(run, prepared, f"{kind} {severity}")
    return None, right


def _right(run: AnalysisRun, prepared: Prepared, what: str) -> np.ndarray:
    victim = prepared.victim

    def measure(x: Tensor, y: Tensor, rows: tuple[int, ...]) -> dict[str, Any]:
        with torch.no_grad():
            return {"right": "".join("1" if each else "0" for each in is_correct(victim(x), y).tolist())}

    # what is asked besides this set does not change what is found on it
    parts = run.over_batches(prepared, measure, f"{what}, {victim.name}", kinds=None, severities=None)
    return np.array([each == "1" for part in parts for each in part["right"]])


def _rows(found: Measured, error: Estimate | None) -> Iterator[Row]:
    for name, estimate in found.summary().items():
        yield _row(found, name, None, estimate)
    if error is not None:
        yield _row(found, "mCE", None, error)
    for (kind, severity), right in found.right.items():
        yield _row(found, kind, severity, share_of_images(right))


def _row(found: Measured, what: str, severity: int | None, estimate: Estimate) -> Row:
    n = len(next(iter(found.right.values())))
    measure = "error relative to AlexNet" if what == "mCE" else "accuracy"
    return {
        "model": found.name,
        "corruption": what,
        "severity": severity,
        "measure": measure,
        **estimate._asdict(),
        "n": n,
    }


def _tables(found: Sequence[Measured], errors: Mapping[str, Estimate]) -> list[Table]:
    summaries = {each.name: {key: e.text(1, 100) for key, e in each.summary().items()} for each in found}
    for name, error in errors.items():
        summaries[name]["mCE"] = error.text(1, 100)
    keys = list(dict.fromkeys(key for column in summaries.values() for key in column))
    by_kind = {
        each.name: {kind: f"{100 * each.of([kind], each.severities).value:.1f}" for kind in each.kinds}
        for each in found
    }
    kinds = list(dict.fromkeys(kind for each in found for kind in each.kinds))
    return [
        side_by_side("Accuracy under corruptions, in % with 95 % intervals over images", "", keys, summaries),
        side_by_side("Accuracy by kind, mean over severities, in %", "kind", kinds, by_kind),
    ]


def _figures(found: Sequence[Measured]) -> list[Figure]:
    lines = []
    for each in found:
        points = [(float(severity), each.of(each.kinds, [severity])) for severity in each.severities]
        if each.clean is not None:
            points.insert(0, (0.0, share_of_images(each.clean)))
        lines.append(
            Series(
                each.name,
                tuple(x for x, _ in points),
                tuple(e.value for _, e in points),
                tuple(e.low for _, e in points),
                tuple(e.high for _, e in points),
            )
        )
    figures: list[Figure] = [Curves("Mean over kinds", "severity", "accuracy", tuple(lines), percent=True)]
    for each in found:
        values = tuple(
            tuple(100 * float(each.right[(kind, severity)].mean()) for severity in each.severities)
            for kind in each.kinds
        )
        texts = tuple(tuple(f"{value:.0f}" for value in row) for row in values)
        names = tuple(kind.replace("_", " ") for kind in each.kinds)
        title, severities = f"{each.name}: accuracy, %", tuple(map(str, each.severities))
        figures.append(Heat(title, names, severities, values, column_label="severity", low=0, high=100, texts=texts))
    return figures


def _remarks(found: Sequence[Measured], *, made_here: bool) -> Iterator[str]:
    for each in found:
        worst = min(each.kinds, key=lambda kind: each.of([kind], each.severities).value)
        mean, low = each.of(each.kinds, each.severities), each.of([worst], each.severities)
        before = "" if each.clean is None else f", {100 * share_of_images(each.clean).value:.1f} % clean"
        yield (
            f"{each.name}: {100 * mean.value:.1f} % on average{before}; hardest is {worst.replace('_', ' ')}, "
            f"{100 * low.value:.1f} %"
        )
    if made_here:
        yield (
            f"made here, without {' and '.join(MISSING)}: not the published images, so that neither acc-75, acc-95 nor mCE is "
            "defined on them"
        )
    else:
        lacking = [kind for kind in (*CORRUPTIONS, *EXTRA_CORRUPTIONS) if kind not in found[0].kinds]
        if lacking:
            yield f"not measured: {', '.join(lacking)}"
