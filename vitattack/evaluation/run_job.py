"""One job from start to stored result: batches in order, crafted, judged and written; only records stay in memory."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from vitattack.attacks.base import Attack, Calibration, recall_attack
from vitattack.core.files import read_json, write_atomically
from vitattack.core.progress import stage
from vitattack.core.rng import SampleRng, seeded
from vitattack.core.versions import COMPUTING, other_versions, package_versions
from vitattack.data import DataSet
from vitattack.evaluation.batch_runner import BatchRunner, read_batch, rows_at_once
from vitattack.evaluation.chance import TRIED, at_chance, chance_doubt
from vitattack.evaluation.doubts import Doubts, class_coverage, model_doubts, unverified_doubts
from vitattack.evaluation.provenance import provenance
from vitattack.evaluation.random_models import averaging_advice, recognised, rows_to_compare, variation_doubts
from vitattack.evaluation.reuse import keep_or_confirm
from vitattack.evaluation.second_pass import history, run_again
from vitattack.evaluation.zero_gradients import zero_gradient_doubts
from vitattack.models.lost_gradients import lost_gradients_named
from vitattack.models.passes import counting_passes
from vitattack.models.randomness import marked_random
from vitattack.models.victim import Victim, model_digest
from vitattack.records.draws import number_of_draws
from vitattack.records.job import Job
from vitattack.records.record import RecordListener, SampleRecord
from vitattack.records.report_section import Run
from vitattack.records.result import Result
from vitattack.records.store import Sink, finished
from vitattack.threats.base import Threat


def stored(root: Path, job: Job, data: DataSet, attack: Attack, *, again: bool = True) -> Result | None:
    """The result of a finished job, from the store alone. Without `again`, only the first pass is expected."""
    content = finished(root, job)
    if content is None:
        return None
    folder = root / job.folder
    past = history(folder / "samples.jsonl", attack if again else None, job, list(data.cut(rows_at_once(attack, job))))
    if len(past.records) != len(data) or past.again is not None:
        return None
    learned = read_json(folder / "learned.json")
    return Result(
        job,
        past.records,
        content["seconds"],
        (*content["doubts"], *other_versions(content["provenance"])),
        content["provenance"],
        folder,
        learned,
        attack.report(Run(job, past.records, learned)) if again else (),
    )


def run(
    victim: Victim,
    attack: Attack,
    job: Job,
    threat: Threat,
    data: DataSet,
    calibration: Calibration,
    out: Path,
    *,
    shard: tuple[int, int] = (0, 1),
    fresh: bool = False,
    watch: RecordListener = lambda records, total: None,
    again: Callable[[str], RecordListener] = lambda name: lambda records, total: None,
    expected_clean: Any = None,
    model_record: dict[str, Any] | None = None,
) -> Result | None:
    """Attack every sample that the store does not hold yet. None while other shards of the job are unfinished."""
    device = victim.mean.device
    with Sink(out, job, list(data.cut(rows_at_once(attack, job))), shard, fresh=fresh) as sink, ExitStack() as scope:
        with stage("comparing the model with stored logits"):
            keep_or_confirm(sink.folder, victim, data, fresh=fresh)
        watch(sink.records, sink.total)
        with stage("comparing repeated answers"):
            compared = read_batch(data, rows_to_compare(data), victim, device)[0]
            varies = recognised(victim, compared, job.seed, job.batch_size)
        scope.enter_context(marked_random(victim, varies.cause == "chance"))
        if sink.todo or not attack.traits.learns:  # its doubts may depend on the victim
            with stage("preparing the attack"):
                attack = prepared(attack, victim, calibration, job, sink)
        buffers = model_digest(victim, parameters=False)
        batches = BatchRunner(victim, attack, job, threat)
        if sink.todo:
            sink.note({"versions": package_versions(COMPUTING)})
        for number, rows in enumerate(sink.todo):
            began = time.perf_counter()
            x, y, nudged = read_batch(data, rows, victim, device)
            if number == 0:
                with stage("checking the model"):
                    batches.doubt(*model_doubts(victim, x[:8]), *variation_doubts(varies, attack, job))
            records = [outcome.record for outcome in batches.outcomes(rows, x, y)]
            sink.write(records, batches.take_notes(nudged))
            sink.note({"n": len(rows), "seconds": time.perf_counter() - began})
            watch(records, sink.total)
        everything = run_again(victim, attack, job, threat, data, sink, again) if sink.merge() else None
        if everything is not None and at_chance(everything, victim.num_classes):
            x, y, _ = read_batch(data, data.rows[:TRIED], victim, device)
            sink.note({"doubts": [chance_doubt(everything, victim, x, y)]})
        if everything is not None:
            note_zero_gradients(everything, victim, data, sink)
        note_leaks(victim, buffers, sink)
        if everything is None:
            return None
        return finish(
            sink, everything, job, device, attack, attack.doubts(), expected_clean, model_record, data.protocol
        )


def note_leaks(victim: Victim, buffers: str, sink: Sink) -> None:
    """Note a doubt if the buffers no longer have the digest they had before the run."""
    if model_digest(victim, parameters=False) != buffers:
        sink.note({"doubts": ["the model changed its buffers while it was attacked: its state leaks between images"]})


def note_zero_gradients(records: Sequence[SampleRecord], victim: Victim, data: DataSet, sink: Sink) -> None:
    """Note why samples gave attacks no gradient, if any did."""
    doubts = zero_gradient_doubts(records, victim, lambda rows: read_batch(data, rows, victim, victim.mean.device)[0])
    if doubts:
        sink.note({"doubts": doubts})


def finish(
    sink: Sink,
    everything: list[SampleRecord],
    job: Job,
    device: torch.device,
    attack: Attack | None,
    of_attack: Sequence[str],
    expected_clean: Any = None,
    model_record: dict[str, Any] | None = None,
    protocol: Mapping[str, Any] = MappingProxyType({}),
) -> Result:
    """Compute and store the result of a job that has run."""
    events, notes = sink.events(), sink.notes
    learned = sink.learned()
    shown = attack.report(Run(job, everything, learned)) if attack else ()
    told = [
        *of_attack,
        *(doubt for section in shown for doubt in section.doubts),
        *unverified_doubts(model_record or {}),
    ]
    advice = averaging_advice(attack, job) if attack and number_of_draws(everything) else ""
    found = Doubts(everything, notes, events, told, expected_clean, advice).all()
    found += tuple(f"not {protocol['name']} as published: {what}" for what in protocol.get("deviations", ()))
    found += tuple(class_coverage(everything, protocol.get("num_classes")))
    seconds = sum(event.get("seconds", 0.0) for event in events)
    made_with = provenance(device, job, {**protocol, "classes_covered": len({r.label for r in everything})})
    result = Result(job, everything, seconds, found, made_with, sink.folder, learned, shown)
    content = {
        "schema": 1,
        "key": job.key,
        "job": asdict(job),
        **result.json(),
        "sections": [section.stored() for section in result.sections],
        "lines": sink.path.read_bytes().count(b"\n"),
        "model": model_record or {},
        "provenance": result.provenance,
    }
    # not sorted: a stored result is printed in the same order as a fresh one
    write_atomically(sink.folder / "result.json", json.dumps(content, indent=2) + "\n")
    return result


def prepared(attack: Attack, victim: Victim, calibration: Calibration, job: Job, sink: Sink) -> Attack:
    """The attack with what it learns from calibration images: learned once, stored, recalled from then on."""
    content = sink.learned()
    if content is not None:
        return recall_attack(attack, victim, content["learned"])
    began = time.perf_counter()
    rng = SampleRng(job.seed, (0,)).child("prepare")
    with counting_passes(victim) as passes, lost_gradients_named(victim, victim.grey()), seeded(rng):
        attack = attack.prepare(victim, calibration, rng=rng)
    learned = attack.learned()
    if learned is not None:
        seconds = time.perf_counter() - began
        cost = {"forwards": passes.forwards, "backwards": passes.backwards, "seconds": seconds}
        sink.keep_learned({"schema": 1, "attack": job.attack, "learned": learned, **cost})
        sink.note({"seconds": seconds})
    return attack
