"""Stores made record by record, without a model: for tests of what is shown of them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitattack.records.job import Job
from vitattack.records.record import SampleRecord, Status
from vitattack.records.report_section import Section
from vitattack.records.result import Result
from vitattack.records.store import Sink

BATCH = 256


def record(index: int, status: Status = "robust", label: int = 3, **fields: Any) -> SampleRecord:
    """A record that fits its status."""
    wrong = status == "clean_wrong"
    values: dict[str, Any] = {
        "clean": label + 1 if wrong else label,
        "adversarial": -1 if wrong else label + 1 if status == "fooled" else label,
        "size": 0.0 if wrong else 0.03,
        "fragile": False,
        "violation": False,
        "first_fooled": 2 if status == "fooled" else -1,
        "forwards": 1 if wrong else 5,
        "backwards": 0 if wrong else 3,
    }
    return SampleRecord(index=index, label=label, status=status, **{**values, **fields})


def drawn_records(n: int, seed: int, robust: float = 0.4) -> list[SampleRecord]:
    """Records as a run makes them, of drawn outcomes; the clean predictions of equal `n` are equal."""
    clean, rng = random.Random(n), random.Random(seed)
    records = []
    for index in range(n):
        label, right = clean.randrange(9), clean.random() < 0.8
        status: Status = "clean_wrong" if not right else "robust" if rng.random() < robust else "fooled"
        evidence = {"margin": rng.uniform(-5, 0 if status == "robust" else 5)} if right else {}
        passes = rng.randrange(1, 200) if right else 1
        records.append(record(index, status, label, forwards=passes, evidence=evidence))
    return records


def job(model: str = "tiny-vit", attack: str = "pgd", **fields: Any) -> Job:
    values = {"threat": "linf:8/255", "data": "cifar10-demo[:10]", "weights": "w" * 64, "pixels": "p" * 64}
    return Job(model, attack, **{**values, **fields})


def store_run(
    root: Path,
    of: Job,
    records: Sequence[SampleRecord],
    *,
    sections: Sequence[Section] = (),
    doubts: Sequence[str] = (),
    provenance: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
    finished: bool = True,
) -> Path:
    """Write a run as `eval` does, and return its folder; an unfinished one lacks its last batch and its result."""
    batches = [tuple(range(at, min(at + BATCH, len(records)))) for at in range(0, len(records), BATCH)]
    with Sink(root, of, [tuple(records[place].index for place in batch) for batch in batches]) as sink:
        for batch in batches if finished else batches[:-1]:
            sink.write([records[place] for place in batch])
        if finished:
            facts = {"python": "3.11.7", "versions": {"vitattack": "0.1.0"}, **(provenance or {})}
            result = Result(of, records, 12.5, tuple(doubts), facts, sink.folder, None, tuple(sections))
            content = {
                "sections": [section.stored() for section in sections],
                "model": dict(model or {"source": "zoo"}),
            }
            sink.keep_result({**result.json(), **content, "provenance": facts})
        return sink.folder
