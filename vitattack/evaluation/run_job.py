"""One job from start to stored result: batches in order, crafted, judged and written; only records stay in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from vitattack.attacks.base import Attack, Calibration, recall_attack
from vitattack.core.errors import first_line
from vitattack.core.progress import stage
from vitattack.core.rng import SampleRng, seeded
from vitattack.core.versions import COMPUTING, package_versions
from vitattack.data import DataSet
from vitattack.evaluation.attachments import attached
from vitattack.evaluation.batch_runner import BatchRunner, read_batch, rows_at_once
from vitattack.evaluation.batches import Images, attacked_batches
from vitattack.evaluation.chance import TRIED, at_chance, chance_doubt
from vitattack.evaluation.doubts import Doubts, class_coverage, model_doubts, unverified_doubts
from vitattack.evaluation.example_keeper import ExampleKeeper
from vitattack.evaluation.provenance import provenance
from vitattack.evaluation.random_models import averaging_advice, recognised, rows_to_compare, variation_doubts
from vitattack.evaluation.reuse import keep_or_confirm
from vitattack.evaluation.second_pass import run_again
from vitattack.evaluation.workers import Workers
from vitattack.evaluation.zero_gradients import zero_gradient_doubts
from vitattack.models.lost_gradients import lost_gradients_named
from vitattack.models.passes import counting_passes
from vitattack.models.randomness import marked_random
from vitattack.models.victim import Victim
from vitattack.records.batch import BatchNotes
from vitattack.records.draws import number_of_draws
from vitattack.records.job import Job
from vitattack.records.record import RecordListener, SampleRecord
from vitattack.records.report_section import Run
from vitattack.records.result import Result
from vitattack.records.store import Sink
from vitattack.records.stored_result import read_result
from vitattack.threats.base import Threat


def stored(root: Path, job: Job, data: DataSet, attack: Attack, *, own: bool = True) -> Result | None:
    """The result of a finished job, from the store alone; without `own`, without what the attack reports."""
    result = read_result(root, job.folder)
    if result is None or result.job != job or [record.index for record in result.records] != [*data.rows]:
        return None
    if not own:
        return replace(result, sections=())
    return replace(result, sections=(*attack.report(Run(job, result.records, result.learned)), *attached(result)))


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
    save_adv: bool = False,
    finished: Result | None = None,
    workers: Workers | None = None,
) -> Result | None:
    """Attack every sample that the store does not hold yet. None while other shards of the job are unfinished.

    Of a `finished` job only examples can be missing: its result stays as it is.
    """
    device = victim.mean.device
    with Sink(out, job, list(data.cut(rows_at_once(attack, job))), shard, fresh=fresh) as sink, ExitStack() as scope:
        with stage("comparing the model with stored logits"):
            keep_or_confirm(sink.folder, victim, data, fresh=fresh)
        watch(sink.records, sink.total)
        with stage("comparing repeated answers"):
            compared = read_batch(data, rows_to_compare(data), victim, device)[0]
            varies = recognised(victim, compared, job.seed, job.batch_size)
        scope.enter_context(marked_random(victim, varies.cause == "chance"))
        with stage("preparing the attack"):  # for its doubts even if nothing is left to run
            attack = prepared(attack, victim, calibration, job, sink)
        batches = BatchRunner(victim, attack, job, threat)
        examples = ExampleKeeper(sink.folder, job, wanted=save_adv)
        examples.complete(sink.stored_batches, batches.crafter(data))

        def look(images: Images) -> None:
            if images.rows == sink.batches[0]:
                with stage("checking the model"):
                    batches.doubt(*model_doubts(victim, images.x[:8]), *variation_doubts(varies, attack, job))

        workers = workers or Workers(1, job.threads)
        if sink.todo:
            sink.note({"versions": package_versions(COMPUTING), "workers": workers.record()})
        with closing(attacked_batches(batches, data, enumerate(sink.todo), workers, look, keep=save_adv)) as answers:
            for found in answers:
                records = found.records
                examples.keep(sink.numbered(records), found.x, found.outcomes)
                sink.write(records, found.notes)
                sink.note({"n": len(records), "seconds": found.seconds})
                watch(records, sink.total)
        whole = sink.merge()
        everything = run_again(victim, attack, job, threat, data, sink, again, examples, workers) if whole else None
        if everything is None or finished is not None:
            return finished
        noticed = []
        if at_chance(everything, victim.num_classes):
            x, y, _ = read_batch(data, data.alike(data.rows[:TRIED]), victim, device)
            noticed.append(chance_doubt(everything, victim, x, y))
        noticed += gradient_doubts(everything, victim, data)
        told = attack.doubts()
        return finish(
            sink, everything, job, device, attack, told, expected_clean, model_record, data.protocol, noticed, workers
        )


def gradient_doubts(records: Sequence[SampleRecord], victim: Victim, data: DataSet) -> list[str]:
    """The doubt about samples that gave attacks no gradient, with its cause, which their images show."""
    return zero_gradient_doubts(
        records, victim, lambda rows: read_batch(data, data.alike(rows), victim, victim.mean.device)[0]
    )


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
    noticed: Sequence[str] = (),
    workers: Workers | None = None,
) -> Result:
    """Compute and store the result of a job that has run, from records that are those on disk."""
    sink.confirm(everything)
    events, notes = sink.events(), BatchNotes.together([sink.notes, BatchNotes(tuple(noticed))])
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
    covered = {**protocol, "classes_covered": len({r.label for r in everything})}
    made_with = provenance(device, job, covered, workers.record() if workers else None)
    result = Result(job, everything, seconds, found, made_with, sink.folder, learned, shown)
    sink.keep_result(
        {
            **result.json(),
            "sections": [section.stored() for section in result.sections],
            "model": model_record or {},
            "provenance": result.provenance,
        }
    )
    return result


def prepared(attack: Attack, victim: Victim, calibration: Calibration, job: Job, sink: Sink) -> Attack:
    """The attack with what it learns from calibration images: learned once, stored, recalled from then on."""
    content = sink.learned()
    if content is not None:
        try:
            return recall_attack(attack, victim, content["learned"])
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:  # schema 1 had no checksum
            sink.forget_learned(first_line(error) or type(error).__name__)
    began = time.perf_counter()
    rng = SampleRng(job.seed, (0,)).child("prepare")
    with counting_passes(victim) as passes, lost_gradients_named(victim, victim.grey()), seeded(rng):
        attack = attack.prepare(victim, calibration, rng=rng)
    learned = attack.learned()
    if learned is not None:
        seconds = time.perf_counter() - began
        cost = {"forwards": passes.forwards, "backwards": passes.backwards, "seconds": seconds}
        sink.keep_learned({"attack": job.attack, "learned": learned, **cost})
        sink.note({"seconds": seconds})
    return attack
