"""One source of a transfer study and its targets; stored batch by batch, like any run.

The run of a source on itself is the ordinary white-box job, with the same key, folder and bytes as `eval` gives it. A
cell for another target has a folder of its own. Candidates are not stored: where a batch is missing in some cell it is
crafted again, and comes out the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from vitattack.attacks.base import Attack
from vitattack.core.versions import COMPUTING, package_versions
from vitattack.data import DataSet
from vitattack.evaluation.batch_runner import BatchRunner, MemoryBackoff, read_batch, rows_at_once
from vitattack.evaluation.doubts import leak_doubts, model_doubts
from vitattack.evaluation.listener import EvaluationListener
from vitattack.evaluation.prepare import expected_clean
from vitattack.evaluation.random_models import recognised, rows_to_compare, variation_doubts
from vitattack.evaluation.reuse import confirm, keep_or_confirm
from vitattack.evaluation.run_job import finish, gradient_doubts, prepared, stored
from vitattack.evaluation.second_pass import run_again
from vitattack.evaluation.transfer.candidates import craft, judged, pixels_digest
from vitattack.evaluation.transfer.victims import (
    StudiedModel,
    at_size,
)
from vitattack.models.randomness import Variation, marked_random
from vitattack.models.victim import model_digest
from vitattack.records.batch import BatchNotes
from vitattack.records.job import Job
from vitattack.records.record import RecordListener
from vitattack.records.result import Result
from vitattack.records.store import Sink
from vitattack.threats.lp import LpBall


@dataclass(frozen=True)
class SourceRun:
    """One source and its targets."""

    source: StudiedModel
    targets: Sequence[StudiedModel]
    job: Job  # of the source on itself
    attack: Attack
    ball: LpBall
    calibration: DataSet | None
    base: DataSet
    root: Path
    place: torch.device

    def run(self, listener: EvaluationListener, number: int, count: int, *, fresh: bool) -> dict[str, Result]:
        """The result on every target and on the source itself, by name."""
        models = {model.name: model for model in (self.source, *self.targets)}
        jobs = {name: self._job(model) for name, model in models.items()}
        kept = {} if fresh else {name: self._stored(model, jobs[name]) for name, model in models.items()}
        results = {name: result for name, result in kept.items() if result is not None}
        shown = replace(self.job, attack=f"{self.job.attack} on {self.source.name}")
        if len(results) == len(jobs):
            listener.done(replace(results[self.source.name], job=shown), True)
            return results
        with ExitStack() as stack:
            varies = {name: self._variation(model, jobs[name]) for name, model in models.items()}
            for name, model in models.items():
                stack.enter_context(marked_random(model.victim, varies[name].cause == "chance"))
            cut = list(self.base.cut(rows_at_once(self.attack, self.job)))
            sinks = {name: stack.enter_context(Sink(self.root, job, cut, fresh=fresh)) for name, job in jobs.items()}
            for name, sink in sinks.items():
                keep_or_confirm(sink.folder, models[name].victim, models[name].data, fresh=fresh)
            attack = self._fill(models, sinks, cut, varies, listener.job(shown, number, count))
            for name, job in jobs.items():
                if name not in results:
                    results[name] = self._finish(models[name], job, sinks, attack, partial(listener.again, shown))
        listener.done(replace(results[self.source.name], job=shown), False)
        return results

    def _stored(self, model: StudiedModel, job: Job) -> Result | None:
        """The stored result. Only the white-box job has later passes; their candidates are not judged on other models."""
        result = stored(self.root, job, model.data, self.attack, own=model is self.source)
        if result is not None:
            confirm(self.root / job.folder, model.victim, model.data)
        return result

    def _job(self, target: StudiedModel) -> Job:
        """The white-box job, or that of a cell: never the one of `eval` with transfer(...), which crafts per target."""
        if target is self.source:
            return self.job
        return replace(
            self.job,
            model=target.name,
            attack=f"transfer({self.source.name!r}, {self.job.attack})",
            data=target.data.text,
            weights=f"{target.weights} on all images crafted with {self.job.weights}",
            pixels=f"{target.pixels} {self.job.pixels}",
        )

    def _fill(
        self,
        models: dict[str, StudiedModel],
        sinks: dict[str, Sink],
        cut: list[tuple[int, ...]],
        varies: dict[str, Variation],
        watch: RecordListener,
    ) -> Attack:
        """Craft and judge the batches that are missing in some cell; returns the attack in its prepared state."""
        missing = {name: set(sink.todo) for name, sink in sinks.items()}
        crafted = [number for number, rows in enumerate(cut) if any(rows in left for left in missing.values())]
        own = sinks[self.source.name]
        again = {row for number in crafted for row in cut[number]}
        watch([record for record in own.records if record.index not in again], own.total)
        if not crafted:
            return self.attack
        attack = prepared(self.attack, self.source.victim, self._calibration, self.job, own)
        batches = BatchRunner(self.source.victim, attack, self.job, self.ball)
        pieces = {name: MemoryBackoff(self.job.batch_size) for name in models} | {self.source.name: batches.backoff}
        for name, sink in sinks.items():
            if missing[name]:
                sink.note({"versions": package_versions(COMPUTING)})
        buffers = {name: model_digest(model.victim, parameters=False) for name, model in models.items()}
        for number, rows in ((number, cut[number]) for number in crafted):
            backoffs = {name: part.backoffs for name, part in pieces.items()}
            began = time.perf_counter()
            seen, y, nudged = read_batch(self.source.data, rows, self.source.victim, self.place)
            if number == 0:
                batches.doubt(*self._doubts_about(self.source, seen, varies[self.source.name]))
            records, x_adv, evidence = craft(batches, rows, seen, y)
            crafting = batches.take_notes(nudged)
            for name in (name for name in sinks if rows in missing[name]):
                target = models[name]
                found, notes = records, crafting
                if target is not self.source:
                    x, _, nudged = read_batch(target.data, rows, target.victim, self.place)
                    found = judged(
                        target.victim, self.ball, rows, x, y, seen, x_adv, evidence, pieces[name], self.job.seed
                    )
                    doubts = leak_doubts(target.victim, buffers[name])
                    if number == 0:
                        doubts += self._doubts_about(target, x, varies[name])
                    notes = BatchNotes(tuple(doubts), pieces[name].backoffs - backoffs[name], nudged)
                sinks[name].write(found, notes)
                seconds = time.perf_counter() - began
                sinks[name].note({"n": len(rows), "seconds": seconds, "crafted": [number, pixels_digest(x_adv)]})
                began = time.perf_counter()
            watch(records, own.total)
        return attack

    def _doubts_about(self, model: StudiedModel, x: Tensor, varies: Variation) -> list[str]:
        """Doubts about a model from the first batch of the job."""
        about = replace(self.job, model=model.name)
        return [*model_doubts(model.victim, x[:8]), *variation_doubts(varies, self.attack, about)]

    def _variation(self, model: StudiedModel, job: Job) -> Variation:
        x = read_batch(model.data, rows_to_compare(model.data), model.victim, self.place)[0]
        return recognised(model.victim, x, job.seed, job.batch_size)

    def _calibration(self) -> tuple[Tensor, Tensor]:
        if self.calibration is None:
            return torch.empty(0), torch.empty(0)
        images = at_size(self.calibration, self.source.size)
        return read_batch(images, images.rows, self.source.victim, self.place)[:2]

    def _finish(
        self,
        model: StudiedModel,
        job: Job,
        sinks: dict[str, Sink],
        attack: Attack,
        again: Callable[[str], RecordListener],
    ) -> Result:
        sink, own = sinks[model.name], sinks[self.source.name]
        doubts = [*attack.doubts()]
        mine, theirs = _crafted(sink), _crafted(own)
        if any(mine[number] != theirs[number] for number in mine.keys() & theirs.keys()):
            doubts.append("a batch was crafted again for this cell and came out otherwise: use --fresh")
        expected = None if model.rescaled else expected_clean(model.loaded, model.data)
        records, noticed = sink.records, []
        if model is self.source:
            records = run_again(model.victim, attack, job, self.ball, model.data, sink, again)
            noticed = gradient_doubts(records, model.victim, model.data)
        own_run = attack if model is self.source else None  # its report is about its own victim
        origin, protocol = model.loaded.sized_record, model.data.protocol
        return finish(sink, records, job, self.place, own_run, doubts, expected, origin, protocol, noticed)


def _crafted(sink: Sink) -> dict[int, str]:
    """Digests of the candidates by batch number, as noted beside the records."""
    notes = [event["crafted"] for event in sink.events() if "crafted" in event]
    return {int(number): str(found) for number, found in notes}
