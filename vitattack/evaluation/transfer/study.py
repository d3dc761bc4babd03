"""Candidates crafted once per source and judged on every target; stored batch by batch, like any run.

The run of a source on itself is the ordinary white-box job, with the same key, folder and bytes as `eval` gives it. A
cell for another target has a folder of its own. Candidates are not stored: where a batch is missing in some cell it is
crafted again, and comes out the same.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Unpack

import torch
from torch import Tensor, nn

from vitattack.attacks import attack_text
from vitattack.attacks.base import Attack, Crafted
from vitattack.attacks.black_box.transfer import boundary_doubts, carried
from vitattack.attacks.settings import resolved_settings
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.core.runtime import numerics, resolve_device
from vitattack.core.versions import COMPUTING, package_versions
from vitattack.data import DataSet
from vitattack.evaluation.batch_runner import BatchRunner, MemoryBackoff, read_batch, rows_at_once
from vitattack.evaluation.doubts import model_doubts
from vitattack.evaluation.judge import clean_answers, judge
from vitattack.evaluation.listener import EvaluationListener
from vitattack.evaluation.prepare import calibration_images, expected_clean, preprocessing
from vitattack.evaluation.random_models import recognised, rows_to_compare, variation_doubts
from vitattack.evaluation.reuse import confirm, keep_or_confirm
from vitattack.evaluation.run_job import finish, note_leaks, note_zero_gradients, prepared, stored
from vitattack.evaluation.second_pass import run_again
from vitattack.evaluation.setup import DEFAULT_THREAT, Setup, SetupFields
from vitattack.evaluation.transfer.command_words import DEFAULT_ATTACK
from vitattack.evaluation.transfer.success_matrix import TransferCell, TransferMatrix
from vitattack.evaluation.transfer.victims import (
    Model,
    StudiedModel,
    assemble,
    at_size,
    check_distinct,
    key_of,
    size_doubts,
)
from vitattack.models.randomness import Variation, marked_random
from vitattack.models.victim import Victim, model_digest
from vitattack.records.batch import BatchNotes
from vitattack.records.job import Job
from vitattack.records.record import RecordListener, SampleRecord
from vitattack.records.result import Result
from vitattack.records.store import Sink
from vitattack.text.syntax import AttackSource, excerpt
from vitattack.threats.base import Threat, parse_threats
from vitattack.threats.lp import LpBall


@torch.inference_mode(False)
def transfer(
    models: Sequence[Model],
    to: Sequence[Model] = (),
    attack: AttackSource = DEFAULT_ATTACK,
    *,
    threat: str | Threat = DEFAULT_THREAT,
    listener: EvaluationListener | None = None,
    setup: Setup | None = None,
    **fields: Unpack[SetupFields],
) -> TransferMatrix:
    """Craft on each of `models` with the true labels, and judge the candidates on each of `to` (default: the same models).

    All images are attacked on the source, even those it misclassifies. Accuracy is the target's over all images; a
    clean error stays an error. With `out` a second call resumes where the first one stopped. The fields of `Setup` may be
    given as keywords.
    """
    setup = replace(setup or Setup(), **fields)
    if setup.shard != (0, 1) or setup.precision != "fp32":
        raise UsageError("transfer runs whole and in fp32: drop the shard and the precision")
    budgets = parse_threats(threat) if isinstance(threat, str) else (threat,)
    if len(budgets) > 1:
        raise UsageError("candidates are carried under one budget at a time: give one --threat")
    ball = budgets[0]
    if not isinstance(ball, LpBall):
        raise UsageError(f"transfer carries changes of pixels, not {ball.kind} ones: use --threat linf:1/255 or l2:0.5")
    named = attack_text.parse(attack, ball)
    text, built = named.text, named.attack
    if built.traits.sources:
        raise UsageError(f"{excerpt(text)} names its source itself: give this command the attack alone, such as pgd")
    if setup.calibration is not None and not built.traits.learns:
        raise UsageError("calibration images are for attacks that learn from some, such as aas: drop them")
    check_distinct(models, to)

    with numerics(setup.cores), setup.store() as root:
        place = resolve_device(setup.device, next((m for m in [*models, *to] if isinstance(m, nn.Module)), None))
        everyone, base = assemble([*models, *to], place, setup)
        rows = [everyone[key_of(model)] for model in models]
        columns = [everyone[key_of(model)] for model in to] or rows
        other = None
        if built.traits.learns:
            how = preprocessing(setup.transform)
            other = calibration_images(setup.calibration, base, setup.data_folder, how)
        taught_by = f"{other.text} {other.digest()}" if other else ""
        cells: list[TransferCell] = []
        white_box: dict[str, Result] = {}
        for number, source in enumerate(rows):
            job = setup.job(
                model=source.name,
                attack=text,
                threat=str(ball),
                data=source.data.text,
                weights=source.weights,
                pixels=source.pixels,
                calibration=taught_by,
                device=place.type,
                settings=resolved_settings(built),
            )
            row = SourceRun(source, columns, job, built, ball, other, base, root, place)
            fresh = setup.fresh or not all(model.lasting for model in (source, *columns))
            found = row.run(listener or EvaluationListener(), number, len(rows), fresh=fresh)
            if setup.out is None:
                found = {name: replace(result, folder=None) for name, result in found.items()}
            white_box[source.name] = found[source.name]
            cells += [TransferCell(source.name, t.name, found[t.name], source.size != t.size) for t in columns]
        return TransferMatrix(
            sources=tuple(source.name for source in rows),
            targets=tuple(target.name for target in columns),
            cells=tuple(cells),
            white_box=white_box,
            data=base.text,
            notes=(*boundary_doubts(built), *size_doubts(list(everyone.values()), ball)),
            provenance={
                **white_box[rows[0].name].provenance,
                "weights_sha256": {model.name: model.weights for model in everyone.values()},
                "data_sha256": base.digest(),
            },
            folder=Path(setup.out) if setup.out is not None else None,
        )


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
        result = stored(self.root, job, model.data, self.attack, again=model is self.source)
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
        done = {name: len(cut) - len(sink.todo) for name, sink in sinks.items()}
        first = min(done.values())
        own = sinks[self.source.name]
        watch(own.records[: sum(map(len, cut[:first]))], own.total)
        if first == len(cut):
            return self.attack
        attack = prepared(self.attack, self.source.victim, self._calibration, self.job, own)
        batches = BatchRunner(self.source.victim, attack, self.job, self.ball)
        pieces = {name: MemoryBackoff(self.job.batch_size) for name in models} | {self.source.name: batches.backoff}
        for name, sink in sinks.items():
            if done[name] < len(cut):
                sink.note({"versions": package_versions(COMPUTING)})
        buffers = {name: model_digest(model.victim, parameters=False) for name, model in models.items()}
        for number, rows in enumerate(cut[first:], start=first):
            backoffs = {name: part.backoffs for name, part in pieces.items()}
            began = time.perf_counter()
            seen, y, _ = read_batch(self.source.data, rows, self.source.victim, self.place)
            records, x_adv, evidence = craft(batches, rows, seen, y)
            crafting = batches.take_notes()
            for name in (name for name in sinks if number >= done[name]):
                target = models[name]
                x, _, nudged = read_batch(target.data, rows, target.victim, self.place)
                found = records
                if target is not self.source:
                    found = _judged(
                        target.victim, self.ball, rows, x, y, seen, x_adv, evidence, pieces[name], self.job.seed
                    )
                doubts: list[str] = []
                if number == done[name]:
                    doubts = model_doubts(target.victim, x[:8])
                    doubts += variation_doubts(varies[name], self.attack, replace(self.job, model=target.name))
                notes = BatchNotes(tuple(doubts), pieces[name].backoffs - backoffs[name], nudged)
                if target is self.source:
                    notes = replace(notes + crafting, backoffs=crafting.backoffs)  # its pieces are those of crafting
                sinks[name].write(found, notes)
                seconds = time.perf_counter() - began
                sinks[name].note({"n": len(rows), "seconds": seconds, "crafted": [number, _pixels_digest(x_adv)]})
                began = time.perf_counter()
            watch(records, own.total)
        for name, model in models.items():
            note_leaks(model.victim, buffers[name], sinks[name])
        return attack

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
        records = sink.records
        if model is self.source:
            records = run_again(model.victim, attack, job, self.ball, model.data, sink, again)
            note_zero_gradients(records, model.victim, model.data, sink)
        own_run = attack if model is self.source else None  # its report is about its own victim
        return finish(
            sink, records, job, self.place, own_run, doubts, expected, model.loaded.record, model.data.protocol
        )


def craft(
    batches: BatchRunner, rows: Sequence[int], x: Tensor, y: Tensor
) -> tuple[list[SampleRecord], Tensor, dict[str, Tensor]]:
    """The white-box records of a batch, candidates for all of its rows, and the crafting evidence kept in the cells.

    Images the source misclassifies are attacked in a call of their own, so that the others are crafted by the very
    computation that `evaluate` does.
    """
    outcomes = batches.outcomes(rows, x, y)
    records = [outcome.record for outcome in outcomes]
    x_adv = torch.stack([outcome.x_adv for outcome in outcomes])
    forwards = [record.forwards for record in records]
    backwards = [record.backwards for record in records]
    right = torch.tensor([record.clean == record.label for record in records], device=x.device)
    wrong = (~right).nonzero().flatten()
    rng = SampleRng(batches.job.seed, tuple(rows))

    def regardless(part: slice) -> list[tuple[Tensor, int, int]]:
        at = wrong[part]
        crafted, spent = batches.crafted(x[at], y[at], rng[at])
        return list(zip(crafted.x_adv, spent["forwards"].tolist(), spent["backwards"].tolist(), strict=True))

    if len(wrong):
        for at, (candidate, one, two) in zip(wrong.tolist(), batches.backoff(regardless, 0, len(wrong)), strict=True):
            x_adv[at] = candidate
            forwards[at] += one
            backwards[at] += two
    fooled = [record.status == "fooled" for record in records]
    evidence = {
        "source_right": right,
        "source_fooled": torch.tensor(fooled, device=x.device),
        "source_forwards": torch.tensor(forwards, device=x.device),
        "source_backwards": torch.tensor(backwards, device=x.device),
    }
    return records, x_adv, evidence


def _judged(
    victim: Victim,
    ball: LpBall,
    rows: Sequence[int],
    x: Tensor,
    y: Tensor,
    seen: Tensor,
    x_adv: Tensor,
    evidence: dict[str, Tensor],
    pieces: MemoryBackoff,
    seed: int,
) -> list[SampleRecord]:
    """Records of candidates crafted around `seen`, on a target whose images are `x`."""
    candidates = carried(ball, x, seen, x_adv)
    evidence = {**evidence, "resized": torch.full_like(y, int(seen.shape != x.shape))}

    def work(part: slice) -> list[SampleRecord]:
        rng = SampleRng(seed, tuple(rows[part]))
        clean = clean_answers(victim, x[part], y[part], rng)
        attacked = clean.attacked
        mine = Crafted(candidates[part][attacked], {name: row[part][attacked] for name, row in evidence.items()})
        others = {name: row[part][~attacked] for name, row in evidence.items()}
        nothing = torch.zeros_like(y[part][attacked])
        return judge(victim, ball, rng, x[part], y[part], clean, mine, nothing, nothing, others)

    return pieces(work, 0, len(rows))


def _pixels_digest(x: Tensor) -> str:
    return hashlib.sha256(x.cpu().contiguous().numpy().tobytes()).hexdigest()[:16]


def _crafted(sink: Sink) -> dict[int, str]:
    """Digests of the candidates by batch number, as noted beside the records."""
    notes = [event["crafted"] for event in sink.events() if "crafted" in event]
    return {int(number): str(found) for number, found in notes}
