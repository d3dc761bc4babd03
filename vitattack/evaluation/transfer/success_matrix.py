"""Transfer matrices: candidates crafted on some models and judged on others, computed from records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitattack.records import stats
from vitattack.records.record import SampleRecord
from vitattack.records.result import Result
from vitattack.records.stats import Accuracy

# Candidates of another model that fool a target more than its own do point to masked gradients or a weak attack.
SIGNIFICANT = 0.01


@dataclass(frozen=True)
class TransferCell:
    """Candidates of one source on one target; `resized` if their perturbations were moved to another input size."""

    source: str
    target: str
    result: Result
    resized: bool = False

    @property
    def accuracy(self) -> Accuracy:
        """Share of all samples that the target classifies correctly, clean and under attack."""
        return self.result.robust

    @property
    def drop(self) -> Accuracy:
        """Share of all samples that the target loses to the candidates: clean accuracy minus accuracy."""
        if self.result.draws:
            return stats.expected_loss(self.result.records)
        right = [r for r in self.result.records if r.clean == r.label]
        kept = sum(r.status == "robust" for r in right)
        solid = sum(r.status == "robust" and not r.fragile for r in right)
        possible = sum(r.status in ("robust", "invalid") for r in right)
        n = len(right)
        return stats.share(n - kept, self.result.n, least=n - possible, most=n - solid)

    @property
    def joint(self) -> list[SampleRecord]:
        """Samples that source and target both classify correctly; evidence in the records speaks for the source."""
        return [
            r
            for r in self.result.records
            if r.clean == r.label and (self.source == self.target or r.evidence["source_right"])
        ]

    @property
    def success(self) -> Accuracy:
        """Share of the jointly correct samples whose candidate fools the target."""
        joint = self.joint
        if self.result.draws:
            kept = stats.robust_accuracy(joint)
            return Accuracy(1 - kept.accuracy, 1 - kept.high, 1 - kept.low, kept.n - kept.correct, kept.n)
        fooled = sum(r.status == "fooled" for r in joint)
        open_ = sum(r.status == "invalid" or r.fragile for r in joint)
        return stats.share(fooled, len(joint), most=fooled + open_)

    def json(self) -> dict[str, Any]:
        drop, success = self.drop, self.success
        return {
            "source": self.source,
            "target": self.target,
            "accuracy": self.accuracy.json(),
            "drop": drop.accuracy,
            "drop_low": drop.low,
            "drop_high": drop.high,
            "success": {
                "success": success.accuracy if success.n else None,
                "low": success.low,
                "high": success.high,
                "fooled": success.correct,
            },
            "n": self.result.n,
            "n_joint": success.n,
            "resized": self.resized,
            "run": str(self.result.folder) if self.result.folder else None,
        }


@dataclass(frozen=True)
class TransferMatrix:
    """The cells of all sources and targets, with each source attacked on itself (`white_box`)."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    cells: tuple[TransferCell, ...] = field(repr=False)
    white_box: Mapping[str, Result] = field(repr=False)
    data: str
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict, repr=False)
    folder: Path | None = None

    @property
    def first(self) -> Result:
        return self.white_box[self.sources[0]]

    @property
    def n(self) -> int:
        return self.first.n

    @property
    def clean(self) -> dict[str, Accuracy]:
        """Clean accuracy of every model, sources first."""
        targets = {cell.target: cell.result.clean for cell in self.cells}
        return {name: result.clean for name, result in self.white_box.items()} | targets

    def cell(self, source: str, target: str) -> TransferCell:
        return next(cell for cell in self.cells if (cell.source, cell.target) == (source, target))

    @property
    def doubts(self) -> tuple[str, ...]:
        runs = [(name, self.white_box[name]) for name in self.sources]
        runs += [(f"{cell.source} -> {cell.target}", cell.result) for cell in self.cells if cell.source != cell.target]
        shared = [doubt for doubt in runs[0][1].doubts if all(doubt in run.doubts for _, run in runs)]
        own = [
            f"{name}: {doubt}" for name, run in runs for doubt in run.doubts if doubt not in self.notes + tuple(shared)
        ]
        return tuple(dict.fromkeys([*shared, *self.notes, *own, *self._stronger()]))

    def _stronger(self) -> Sequence[str]:
        found = []
        for cell in self.cells:
            own = self.white_box.get(cell.target)
            if own is None or cell.source == cell.target:
                continue
            test = stats.mcnemar(own.records, cell.result.records)
            if test.only_first > test.only_second and test.p_value < SIGNIFICANT:
                found.append(
                    f"candidates of {cell.source} fool {cell.target} more than its own do (p = {test.p_value:.2g}): "
                    "it masks its gradients, or the attack is too weak"
                )
        return found

    def json(self) -> dict[str, Any]:
        job = self.first.job
        return {
            "schema": 1,
            "sources": list(self.sources),
            "targets": list(self.targets),
            "attack": job.attack,
            "threat": job.threat,
            "data": self.data,
            "n": self.n,
            "seed": job.seed,
            "clean": {name: accuracy.json() for name, accuracy in self.clean.items()},
            "white_box": {name: self.white_box[name].robust.json() for name in self.sources},
            "cells": [cell.json() for cell in self.cells],
            "doubts": list(self.doubts),
            "run": str(self.folder) if self.folder else None,
            "provenance": dict(self.provenance),
        }
