"""Later passes over the survivors of a run: a probe of some, and full AutoAttack on all if it breaks one.

The records of a later pass stand behind those of the first in the same file, with the number of their pass; the last
record of a sample is what counts. Which samples a pass is for follows from the records before it, so that a run that
was stopped anywhere goes on where it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch

from vitattack.attacks.base import BEYOND, NEAREST, ROUGH, UNTRUSTED, Attack, recall_attack
from vitattack.core.rng import SampleRng
from vitattack.data import DataSet
from vitattack.evaluation.batch_runner import BatchRunner
from vitattack.evaluation.batches import attacked_batches
from vitattack.evaluation.example_keeper import ExampleKeeper
from vitattack.evaluation.workers import Workers
from vitattack.models.victim import Victim
from vitattack.records.batch import Batch
from vitattack.records.draws import CLEAN
from vitattack.records.job import Job
from vitattack.records.record import RecordListener, SampleRecord
from vitattack.records.store import Sink
from vitattack.threats.base import Threat

PROBED, ESCALATED = 2, 3  # numbers of passes
PARTS, LEAST = 4, 4  # batches of a pass, and images of one, where there are fewer than would fill them


class LaterPass(NamedTuple):
    """A later pass: its number, its attack, and the samples it is for."""

    number: int
    attack: Attack
    rows: tuple[int, ...]
    first: int  # number of its first stage among those of the job
    nearest: frozenset[int] = frozenset()  # rows chosen for their distance from the boundary, not by chance

    @property
    def name(self) -> str:
        return "probe" if self.number == PROBED else "full"

    def batches(self, data: DataSet, size: int) -> list[tuple[int, ...]]:
        """Batches of at most that size; at least a few, so that several processes have some each."""
        return list(data.cut(min(size, max(LEAST, math.ceil(len(self.rows) / PARTS))), self.rows))


def next_pass(attack: Attack | None, job: Job, records: Sequence[SampleRecord], done: int) -> LaterPass | None:
    """The pass that follows pass `done`, if any."""
    offered = attack.assurance if attack is not None else None
    left = [record for record in records if record.status == "robust"]
    if offered is None or not left or done == ESCALATED or any(record.evidence.get("no_gradient") for record in left):
        return None
    everybody = LaterPass(ESCALATED, offered.full, tuple(record.index for record in left), offered.first_of_full)
    if done == PROBED:
        return everybody if any(r.pass_number == PROBED and r.status == "fooled" for r in records) else None
    if sum(bool(record.evidence.get("zero_grad")) for record in left) > offered.blind * len(left):
        return everybody
    if any(record.evidence.get(BEYOND) for record in left):
        return everybody
    if all(record.evidence.get(UNTRUSTED) for record in left):
        return None
    spent = sum(r.forwards + r.backwards for r in records if r.clean == r.label)
    count = max(offered.least, math.floor(offered.share * spent / offered.price))
    near = count // 2
    drawn = count - near
    if any(record.evidence.get(ROUGH) for record in left):
        near = max(near, math.ceil(offered.rough * len(left)))
    nearest = frozenset(r.index for r in sorted(left, key=_from_boundary)[:near])
    by_chance = chosen([r.index for r in left if r.index not in nearest], job.seed, drawn)
    rows = tuple(r.index for r in left if r.index in nearest.union(by_chance))
    return LaterPass(PROBED, offered.probe, rows, offered.first_of_probe, nearest) if rows else None


def _from_boundary(record: SampleRecord) -> float:
    return -float(record.evidence.get("margin", -math.inf))


def chosen(rows: Sequence[int], seed: int, count: int) -> tuple[int, ...]:
    """A random subset of `count` rows, fixed by seed and row, in their original order."""
    luck = SampleRng(seed, tuple(rows)).child("assurance").uniform(torch.zeros(len(rows), 1, dtype=torch.double))
    first = luck.flatten().argsort(stable=True)[:count]
    return tuple(rows[place] for place in sorted(first.tolist()))


def run_again(
    victim: Victim,
    attack: Attack,
    job: Job,
    threat: Threat,
    data: DataSet,
    sink: Sink,
    watch: Callable[[str], RecordListener],
    examples: ExampleKeeper | None = None,
    workers: Workers | None = None,
) -> list[SampleRecord]:
    """Run what is missing of the later passes of a merged job; returns the last record of every sample."""
    workers = workers or Workers(1, job.threads)
    latest = {record.index: record for record in sink.first_pass}
    done = 1
    while again := next_pass(attack, job, list(latest.values()), done):
        parts = again.batches(data, job.batch_size)
        stored = sink.later_pass(again.number, parts)
        before = {row: latest[row] for row in again.rows}
        latest |= {record.index: record for batch in stored.values() for record in batch.records}
        missing = [(number, rows) for number, rows in enumerate(parts) if number not in stored]
        lacking = [batch for batch in stored.values() if examples and examples.lacks(batch)]
        if missing or lacking:
            batches = BatchRunner(victim, recall_attack(again.attack, victim, None), job, threat)
        if examples and lacking:
            examples.complete(lacking, batches.crafter(data), partial(_merged_with, before, again))
        if missing:
            kept = examples is not None and examples.wanted
            told = watch(again.name)
            told([latest[row] for number in sorted(stored) for row in parts[number]], len(again.rows))
            with closing(attacked_batches(batches, data, missing, workers, keep=kept)) as answers:
                for made in answers:
                    found = [_merged_with(before, again, record) for record in made.records]
                    notes = replace(made.notes, nudged=0)  # counted in the first pass
                    batch = Batch(made.number, tuple(found), notes, again.number)
                    if examples:
                        examples.keep(batch, made.x, made.outcomes)
                    sink.append(batch)
                    latest |= {record.index: record for record in found}
                    sink.note({"pass": again.number, "seconds": made.seconds})
                    told(found, len(again.rows))
        done = again.number
    sink.end_passes(done)
    return list(latest.values())


def _merged_with(before: Mapping[int, SampleRecord], again: LaterPass, found: SampleRecord) -> SampleRecord:
    return merged_record(before[found.index], found, again)


def merged_record(before: SampleRecord, found: SampleRecord, again: LaterPass) -> SampleRecord:
    """The record of a sample after another pass, at the price of all passes."""
    kept = found if found.status == "fooled" else before
    evidence = {**before.evidence, f"spent {again.name}": found.forwards + found.backwards}
    if before.index in again.nearest:
        evidence[NEAREST] = True
    if kept is found:
        stage = int(found.evidence["stage"])
        # a random model may err before the judge alone: no stage claimed the sample
        evidence |= found.evidence | {"stage": again.first + stage if stage >= 0 else stage}
        evidence |= {name: value for name, value in before.evidence.items() if name == CLEAN}
    return replace(
        kept,
        forwards=before.forwards + found.forwards,
        backwards=before.backwards + found.backwards,
        fragile=before.fragile or found.fragile,
        evidence=evidence,
        pass_number=again.number,
    )
