"""Accuracy under patches, attacked and certified, of a model and of double masking around it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vitattack.analyses.curves import accuracy_row, bars_of
from vitattack.analyses.figure import Bars
from vitattack.analyses.findings import Findings, Row
from vitattack.analyses.run import AnalysisRun, Model
from vitattack.analyses.strength.questions import PatchCertificate
from vitattack.analyses.tables import share_text, side_by_side
from vitattack.core.errors import UsageError, VitattackError
from vitattack.models.double_masking import DoubleMasked, double_masked
from vitattack.records import stats
from vitattack.records.stats import Accuracy
from vitattack.threats.patch import Patch

KEYS = ("clean", "attacked", "double-masked: clean", "double-masked: attacked", "double-masked: certified")


def patch_certificate(analysis: PatchCertificate, run: AnalysisRun) -> Findings:
    """Attack every model and the classifier around it on the same images, and certify the latter."""
    threat = run.budget
    if not isinstance(threat, Patch):
        raise UsageError("patch-certificate is of patches: write --threat patch:5px")
    found = {name: _measured(analysis, run, model, threat) for name, model in run.named}
    rows: list[Row] = [
        {"what": key, **accuracy_row(name, analysis.attack, str(threat), accuracy)}
        for name, accuracies in found.items()
        for key, accuracy in zip(KEYS, accuracies, strict=True)
    ]
    columns = {
        name: {key: share_text(accuracy) for key, accuracy in zip(KEYS, accuracies, strict=True)}
        for name, accuracies in found.items()
    }
    title = f"Accuracy under {threat}, {analysis.attack}"
    note = "certified: no patch of this size at any place changes the class; attacked is never below it, image by image"
    table = side_by_side(f"{title}, in % with 95 % intervals", "accuracy", KEYS, columns, [note])
    figure = Bars(title, "accuracy", KEYS, tuple(bars_of(name, each) for name, each in found.items()), percent=True)
    return run.findings(rows, [table], [figure])


def _measured(analysis: PatchCertificate, run: AnalysisRun, model: Model, threat: Patch) -> tuple[Accuracy, ...]:
    prepared = run.open(model)
    defended = double_masked(prepared.victim, threat.side(prepared.victim.grey()), analysis.across)
    inner = defended.model
    assert isinstance(inner, DoubleMasked)

    def certify(x: Tensor, y: Tensor, rows: tuple[int, ...]) -> dict[str, Any]:
        with torch.no_grad():
            return {"certified": inner.certified(x, y).tolist()}

    certified = [
        each
        for part in run.over_batches(prepared, certify, f"certificate of {defended.name}")
        for each in part["certified"]
    ]
    plain = run.evaluate(model, analysis.attack)
    behind = run.evaluate(defended, analysis.attack, data=prepared.images, limit=None)
    records = behind.results[0].records
    broken = [
        r.index for r, holds in zip(records, certified, strict=True) if holds and r.status in ("fooled", "clean_wrong")
    ]
    if broken:
        raise VitattackError(
            f"image {broken[0]} is certified and yet fooled behind double masking ({len(broken)} in all): the model answers by "
            "the batch or at random, so that nothing can be certified of it"
        )
    n = len(certified)
    return (
        plain.clean,
        plain.worst_case,
        behind.clean,
        behind.worst_case,
        stats.share(sum(certified), n),
    )
