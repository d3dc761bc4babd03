"""One job from start to stored result: batches in order, crafted, judged, written; nothing kept in memory but records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from vitattack.attacks.base import Attack, Calibration, Crafted, blank_evidence, learned, learns, recall
from vitattack.data import DataSet
from vitattack.errors import UsageError, VitattackError
from vitattack.evaluation.cost import Passes, counting, share
from vitattack.evaluation.doubts import Doubts, first_look, unconfirmed
from vitattack.evaluation.job import Job
from vitattack.evaluation.judge import clean_predictions, judge
from vitattack.evaluation.provenance import provenance
from vitattack.evaluation.records import SampleRecord
from vitattack.evaluation.result import Result
from vitattack.evaluation.stages import square_helps
from vitattack.evaluation.store import Sink, dump, finished, read_json, whole_batches, write_atomically
from vitattack.models.victim import Victim, check_pixels, digest
from vitattack.rng import SampleRng
from vitattack.threat import Threat

T = TypeVar("T")
# Called with the records just written and the number of samples of this run; first with what was there before.
Watch = Callable[[Sequence[SampleRecord], int], None]


@contextmanager
def numerics(threads: int) -> Iterator[None]:
    """A stated number of threads and true float32, restored afterwards."""
    before = torch.get_num_threads()
    tf32 = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = tf32


def together(attack: Attack, job: Job) -> int:
    """How many consecutive samples an attack is given at once: its own block where it compares samples."""
    return int(getattr(attack, "block", job.batch_size))


def stored(root: Path, job: Job, data: DataSet, attack: Attack) -> Result | None:
    """The result of a finished job, from the store alone."""
    content = finished(root, job)
    if content is None:
        return None
    folder = root / job.folder
    records, _ = whole_batches(folder / "samples.jsonl", list(data.cut(together(attack, job))))
    if len(records) != len(data):
        return None
    learned = read_json(folder / "learned.json")
    return Result(job, records, content["seconds"], tuple(content["doubts"]), content["provenance"], folder, learned)


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
    watch: Watch = lambda records, total: None,
    expected_clean: Any = None,
    model_record: dict[str, Any] | None = None,
) -> Result | None:
    """Attack every sample that the store does not hold yet. None while other shards of the job are unfinished."""
    device = victim.mean.device
    with Sink(out, job, list(data.cut(together(attack, job))), shard, fresh=fresh) as sink:
        watch(sink.records, sink.total)
        if sink.todo or not learns(attack):  # what it says of itself may hang on the victim
            attack = prepared(attack, victim, calibration, job, sink)
        buffers = digest(victim, parameters=False)
        batches = Batches(victim, attack, job, threat)
        for number, rows in enumerate(sink.todo):
            began = time.perf_counter()
            x, y, nudged = read_batch(data, rows, victim, device)
            doubts = first_look(victim, x[:8]) if number == 0 else []
            backoffs = batches.pieces.backoffs
            records = [outcome.record for outcome in batches.outcomes(rows, x, y)]
            sink.write(records)
            seconds = time.perf_counter() - began
            sink.note(
                {
                    "n": len(rows),
                    "seconds": seconds,
                    "backoffs": batches.pieces.backoffs - backoffs,
                    "nudged": nudged,
                    "doubts": doubts,
                }
            )
            watch(records, sink.total)
        note_leaks(victim, buffers, sink)
        return finish(sink, job, device, attack.doubts(), expected_clean, model_record, data.protocol)


def note_leaks(victim: Victim, buffers: str, sink: Sink) -> None:
    """A doubt if the buffers no longer hash to what they did before the run."""
    if digest(victim, parameters=False) != buffers:
        sink.note({"doubts": ["the model changed its buffers while it was attacked: its state leaks between images"]})


def finish(
    sink: Sink,
    job: Job,
    device: torch.device,
    of_attack: Sequence[str],
    expected_clean: Any = None,
    model_record: dict[str, Any] | None = None,
    protocol: Mapping[str, Any] = MappingProxyType({}),
) -> Result | None:
    """The stored result of a job that has run; None while other shards of it are unfinished."""
    everything = sink.merge()
    if everything is None:
        return None
    events = sink.events()
    told = [*of_attack, *square_helps(job.attack, everything), *unconfirmed(model_record or {})]
    found = Doubts(everything, events, told, expected_clean).all()
    found += tuple(f"not {protocol['name']} as published: {what}" for what in protocol.get("deviations", ()))
    seconds = sum(event.get("seconds", 0.0) for event in events)
    made_with = provenance(device, job, protocol)
    result = Result(job, everything, seconds, found, made_with, sink.folder, sink.learned())
    content = {
        "schema": 1,
        "key": job.key,
        "job": asdict(job),
        **result.json(),
        "model": model_record or {},
        "provenance": result.provenance,
    }
    write_atomically(sink.folder / "result.json", dump(content))
    return result


def prepared(attack: Attack, victim: Victim, calibration: Calibration, job: Job, sink: Sink) -> Attack:
    """The attack with what it learns from other images: learned once, stored, and recalled ever after."""
    content = sink.learned()
    if content is not None:
        return recall(attack, victim, content["learned"])
    began = time.perf_counter()
    with counting(victim) as passes:
        attack = attack.prepare(victim, calibration, rng=SampleRng(job.seed, (0,)).child("prepare"))
    if learned(attack) is not None:
        seconds = time.perf_counter() - began
        cost = {"forwards": passes.forwards, "backwards": passes.backwards, "seconds": seconds}
        sink.keep_learned({"schema": 1, "attack": job.attack, "learned": learned(attack), **cost})
        sink.note({"seconds": seconds})
    return attack


def read_batch(data: DataSet, rows: Sequence[int], victim: Victim, device: torch.device) -> tuple[Tensor, Tensor, int]:
    x, y = data.read(rows)
    if x.shape[1] != victim.channels:
        raise UsageError(f"images of '{data.text}' have {x.shape[1]} channels, '{victim.name}' takes {victim.channels}")
    if x.shape[-2:] != (victim.input_size, victim.input_size):
        raise UsageError(
            f"images are {x.shape[-2]} x {x.shape[-1]} px, '{victim.name}' takes {victim.input_size}: "
            "choose data of that size, or for folders --transform"
        )
    x, nudged = check_pixels(x, f"images of '{data.text}'")
    if int(y.min()) < 0 or int(y.max()) >= victim.num_classes:
        wrong = int(y.max()) if int(y.max()) >= victim.num_classes else int(y.min())
        raise UsageError(
            f"label {wrong} of '{data.text}' is no class of '{victim.name}' (0 to {victim.num_classes - 1})"
        )
    return x.to(device), y.to(device), nudged


class Pieces:
    """Work on the rows of a batch, in smaller pieces where memory ends; the piece that fitted is remembered."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.backoffs = 0

    def __call__(self, work: Callable[[slice], list[T]], first: int, last: int) -> list[T]:
        count = last - first
        if count > self.most:
            middle = first + (count + 1) // 2
            return self(work, first, middle) + self(work, middle, last)
        try:
            return work(slice(first, last))
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            if count == 1:
                raise VitattackError(
                    "one image does not fit in memory: use another --device or a smaller model"
                ) from error
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self.most = (count + 1) // 2
        self.backoffs += 1
        return self(work, first, last)


class Outcome(NamedTuple):
    """The record of a sample and the candidate it is about; the image itself where none was made."""

    record: SampleRecord
    x_adv: Tensor


class Batches:
    """Batches to records, by one attack on one victim."""

    def __init__(self, victim: Victim, attack: Attack, job: Job, threat: Threat) -> None:
        self.victim, self.job, self.threat = victim, job, threat
        self.attack = attack.in_chunks(job.batch_size) if hasattr(attack, "in_chunks") else attack
        self.pieces = Pieces(together(attack, job))

    def outcomes(self, rows: Sequence[int], x: Tensor, y: Tensor) -> list[Outcome]:
        return self.pieces(lambda part: self._whole(rows[part], x[part], y[part]), 0, len(rows))

    def _whole(self, rows: Sequence[int], x: Tensor, y: Tensor) -> list[Outcome]:
        clean = clean_predictions(self.victim, x)
        attacked = clean == y
        rng = SampleRng(self.job.seed, tuple(rows))
        aside = getattr(self.attack, "aside", None)
        others: dict[str, Tensor] = {}
        if aside is not None and not bool(attacked.all()):
            with counting(self.victim) as passes:
                others = aside(self.victim, x[~attacked], y[~attacked], rng=rng[~attacked])
            others |= _shared(passes, others, len(rng[~attacked]), x)
        outcomes = self._attacked(rows, x, y, clean, rng, others)
        # A success that hangs on rounding keeps its sample under attack: once more, with other noise.
        loose = torch.tensor([outcome.record.fragile for outcome in outcomes], device=x.device)
        if bool(loose.any()):
            kept = [row for row, again in zip(rows, loose.tolist(), strict=True) if again]
            second = self._attacked(kept, x[loose], y[loose], clean[loose], rng[loose].child("again"), {})
            by_row = {outcome.record.index: outcome for outcome in second}
            outcomes = [_firmer(outcome, by_row.get(outcome.record.index)) for outcome in outcomes]
        return outcomes

    def _attacked(
        self, rows: Sequence[int], x: Tensor, y: Tensor, clean: Tensor, rng: SampleRng, others: dict[str, Tensor]
    ) -> list[Outcome]:
        attacked = clean == y
        crafted = Crafted(x[attacked], blank_evidence(x[attacked]))
        spent = {name: crafted.evidence[name] for name in ("forwards", "backwards")}
        if bool(attacked.any()):
            crafted, spent = self.crafted(x[attacked], y[attacked], rng[attacked])
        records = judge(
            self.victim, self.threat, rows, x, y, clean, crafted, spent["forwards"], spent["backwards"], others
        )
        x_adv = x.clone()
        x_adv[attacked] = crafted.x_adv.to(x.dtype)
        return [Outcome(record, candidate) for record, candidate in zip(records, x_adv, strict=True)]

    def crafted(self, x: Tensor, y: Tensor, rng: SampleRng) -> tuple[Crafted, dict[str, Tensor]]:
        """Candidates, and the counted passes per sample."""
        with counting(self.victim) as passes:
            crafted = self.attack(self.victim, x, y, rng=rng)
        return crafted, _shared(passes, crafted.evidence, len(x), x)


def _shared(passes: Passes, claims: Mapping[str, Tensor], n: int, x: Tensor) -> dict[str, Tensor]:
    """The counted passes per sample, after what the attack says of them."""
    blank = torch.zeros(n, dtype=torch.long, device=x.device)
    return {
        name: share(total, claims.get(name, blank))
        for name, total in (("forwards", passes.forwards), ("backwards", passes.backwards))
    }


def _firmer(first: Outcome, again: Outcome | None) -> Outcome:
    """The second try where it settled the matter, at the price of both."""
    if again is None:
        return first
    forwards = first.record.forwards + again.record.forwards - 1
    backwards = first.record.backwards + again.record.backwards
    chosen = again if again.record.status == "fooled" else first
    return chosen._replace(record=replace(chosen.record, forwards=forwards, backwards=backwards))


def out_of_memory(error: BaseException) -> bool:
    text = str(error).lower()
    known = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(phrase in text for phrase in known)
