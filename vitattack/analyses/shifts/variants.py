"""Accuracies on ImageNet-A and ImageNet-R."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vitattack.analyses.curves import bars_of
from vitattack.analyses.figure import Bars
from vitattack.analyses.findings import Findings, Row
from vitattack.analyses.run import AnalysisRun, Model
from vitattack.analyses.shifts.published import published_table, reported
from vitattack.analyses.shifts.questions import ImagenetVariant
from vitattack.analyses.tables import share_text, side_by_side
from vitattack.attacks.losses.base import is_correct
from vitattack.core.percent import percent
from vitattack.data.labels.imagenet import restricted_classes
from vitattack.records import stats
from vitattack.records.stats import Accuracy

AMONG = {"restricted": "among its 200 classes", "unrestricted": "among all 1000"}


def variant(analysis: ImagenetVariant, run: AnalysisRun) -> Findings:
    """Measure every model, once for both ways to decide."""
    (text,) = analysis.data_opened(run.data_text or "", None)
    found = {name: _measured(analysis, run, model, text) for name, model in run.named}
    rows: list[Row] = [
        {"model": name, "decided": decided, **accuracy.json(), "n": accuracy.n}
        for name, both in found.items()
        for decided, accuracy in both.items()
    ]
    columns = {
        name: {AMONG[key]: share_text(accuracy) for key, accuracy in both.items()} for name, both in found.items()
    }
    for name, model in run.named:
        columns[name]["reported in the zoo"] = reported(model, str(analysis.data))
    keys = [*AMONG.values(), "reported in the zoo"]
    table = side_by_side(f"Accuracy on {analysis.data}, in % with 95 % intervals", "decided", keys, columns)
    other = published_table("Published", [f"bhojanapalli-table3-{analysis.kind}", f"tora-table1-{analysis.kind}"])
    remarks = [
        f"{name}: deciding among 200 classes instead of all adds "
        f"{percent(both['restricted'].accuracy - both['unrestricted'].accuracy)}"
        for name, both in found.items()
    ]
    return run.findings(rows, [table, other], [_figure(str(analysis.data), found)], remarks)


def _measured(analysis: ImagenetVariant, run: AnalysisRun, model: Model, text: str) -> dict[str, Accuracy]:
    prepared = run.open(model, text)
    classes = torch.tensor(restricted_classes(analysis.kind))
    place = {int(label): at for at, label in enumerate(classes)}

    def measure(x: Tensor, y: Tensor, rows: tuple[int, ...]) -> dict[str, Any]:
        with torch.no_grad():
            logits = prepared.victim(x)
        within = torch.tensor([place[int(label)] for label in y], device=y.device)
        few = logits[:, classes.to(logits.device)]
        return {
            "n": len(rows),
            "restricted": int(is_correct(few, within).sum()),
            "unrestricted": int(is_correct(logits, y).sum()),
        }

    parts = run.over_batches(prepared, measure)
    n = sum(part["n"] for part in parts)
    return {key: stats.share(sum(part[key] for part in parts), n) for key in AMONG}


def _figure(data: str, found: dict[str, dict[str, Accuracy]]) -> Bars:
    groups = tuple(found)
    series = tuple(bars_of(AMONG[key], [both[key] for both in found.values()]) for key in AMONG)
    return Bars(f"Accuracy on {data}", "accuracy", groups, series, percent=True)
