"""Later passes over the survivors of a run: a probe of some, and full AutoAttack on all if it breaks one.

The records of a later pass stand behind those of the first in the same file, with the number of their pass; the last
record of a sample is what counts. Which samples a pass is for follows from the records before it, so that a run that
was stopped anywhere goes on where it was.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from vitattack.attacks.base import Attack, recall_attack
from vitattack.core.rng import SampleRng
from vitattack.data import DataSet
from vitattack.evaluation.batch_runner import BatchRunner, read_batch
from vitattack.models.victim import Victim
from vitattack.records.draws import CLEAN
from vitattack.records.job import Job
from vitattack.records.record import RecordListener, SampleRecord
from vitattack.records.store import Sink, whole_batches
from vitattack.threats.base import Threat

PROBED, ESCALATED = 2, 3  # numbers of passes


class LaterPass(NamedTuple):
    """A later pass: its number, its attack, and the samples it is for."""

    number: int
    attack: Attack
    rows: tuple[int, ...]
    first: int  # number of its first stage among those of the job

    @property
    def name(self) -> str:
        return "probe" if self.number == PROBED else "full"

    def batches(self, size: int) -> list[tuple[int, ...]]:
        return [self.rows[at : at + size] for at in range(0, len(self.rows), size)]


class History(NamedTuple):
    """State of a record file: the last record of every sample, the end of the complete batches, and what is left to do."""

    records: list[SampleRecord]
    end: int
    again: LaterPass | None = None
    left: Sequence[tuple[int, ...]] = ()


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
    spent = sum(r.forwards + r.backwards for r in records if r.clean == r.label)
    rows = chosen([r.index for r in left], job.seed, math.floor(offered.share * spent / offered.price))
    return LaterPass(PROBED, offered.probe, rows, offered.first_of_probe) if rows else None


def chosen(rows: Sequence[int], seed: int, count: int) -> tuple[int, ...]:
    """A random subset of `count` rows, fixed by seed and row, in their original order."""
    luck = SampleRng(seed, tuple(rows)).child("assurance").uniform(torch.zeros(len(rows), 1, dtype=torch.double))
    first = luck.flatten().argsort(stable=True)[:count]
    return tuple(rows[place] for place in sorted(first.tolist()))


def history(path: Path, attack: Attack | None, job: Job, batches: Sequence[tuple[int, ...]]) -> History:
    """Read a record file pass by pass; without an attack there is only one pass."""
    records, end = whole_batches(path, batches)
    latest = {record.index: record for record in records}
    if len(records) < sum(map(len, batches)):
        return History(records, end)
    done = 1
    while again := next_pass(attack, job, list(latest.values()), done):
        parts = again.batches(job.batch_size)
        found, end = whole_batches(path, parts, end)
        latest |= {record.index: record for record in found}
        if len(found) < len(again.rows):
            whole = -(-len(found) // job.batch_size)
            return History(list(latest.values()), end, again, parts[whole:])
        done = again.number
    return History(list(latest.values()), end)


def run_again(
    victim: Victim,
    attack: Attack,
    job: Job,
    threat: Threat,
    data: DataSet,
    sink: Sink,
    watch: Callable[[str], RecordListener],
) -> list[SampleRecord]:
    """Run the remaining passes of a merged job; returns the last record of every sample."""
    if sink.has_later_passes:  # of an interrupted run: only the file knows how far it got
        past = history(sink.path, attack, job, sink.batches)
        sink.cut(past.end)
        latest, again, left = {record.index: record for record in past.records}, past.again, past.left
    else:
        latest = {record.index: record for record in sink.first_pass}
        again = next_pass(attack, job, sink.first_pass, 1)
        left = again.batches(job.batch_size) if again else ()
    while again is not None:
        told = watch(again.name)
        told([latest[row] for row in again.rows[: len(again.rows) - sum(map(len, left))]], len(again.rows))
        batches = BatchRunner(victim, recall_attack(again.attack, victim, None), job, threat)
        for rows in left:
            began = time.perf_counter()
            x, y, _ = read_batch(data, rows, victim, victim.mean.device)
            found = [merged_record(latest[o.record.index], o.record, again) for o in batches.outcomes(rows, x, y)]
            sink.append(found, batches.take_notes())
            latest |= {record.index: record for record in found}
            sink.note({"pass": again.number, "seconds": time.perf_counter() - began})
            told(found, len(again.rows))
        again = next_pass(attack, job, list(latest.values()), again.number)
        left = again.batches(job.batch_size) if again else ()
    return list(latest.values())


def merged_record(before: SampleRecord, found: SampleRecord, again: LaterPass) -> SampleRecord:
    """The record of a sample after another pass, at the price of all passes."""
    kept = found if found.status == "fooled" else before
    evidence = {**before.evidence, f"spent {again.name}": found.forwards + found.backwards}
    if kept is found:
        evidence |= found.evidence | {"stage": again.first + int(found.evidence["stage"])}
        evidence |= {name: value for name, value in before.evidence.items() if name == CLEAN}
    return replace(
        kept,
        forwards=before.forwards + found.forwards,
        backwards=before.backwards + found.backwards,
        fragile=before.fragile or found.fragile,
        evidence=evidence,
        pass_number=again.number,
    )
