"""Crafting: batches of images to sample records, by one attack on one victim, halved on out-of-memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from vitattack.attacks.base import Attack, Crafted, DoubtedCrafted, blank_evidence
from vitattack.core.errors import UsageError, VitattackError
from vitattack.core.rng import SampleRng, seeded
from vitattack.core.runtime import out_of_memory
from vitattack.data import DataSet
from vitattack.evaluation.crafting import call_attack
from vitattack.evaluation.doubts import leak_doubts
from vitattack.evaluation.judge import CleanAnswers, clean_answers, judge
from vitattack.models.lost_gradients import lost_gradients_named
from vitattack.models.passes import Passes, counting_passes, spread_passes
from vitattack.models.victim import Victim, check_labels, check_pixels, model_digest
from vitattack.records.batch import BatchNotes
from vitattack.records.job import Job
from vitattack.records.record import SampleRecord
from vitattack.threats.base import Threat

T = TypeVar("T")


def rows_at_once(attack: Attack, job: Job) -> int:
    """Number of consecutive samples an attack is given at once: its own block if it compares samples, else a batch."""
    return attack.traits.block or job.batch_size


def read_batch(data: DataSet, rows: Sequence[int], victim: Victim, device: torch.device) -> tuple[Tensor, Tensor, int]:
    x, y = data.read(rows)
    if x.shape[1] != victim.channels:
        raise UsageError(f"images of '{data.text}' have {x.shape[1]} channels, '{victim.name}' takes {victim.channels}")
    if not victim.takes(x.shape[-2:]):
        height, width = victim.size
        raise UsageError(
            f"images are {x.shape[-2]} x {x.shape[-1]} px, '{victim.name}' takes {victim.size_in_words}: "
            f"choose data of that size, or for folders --transform resize{height}x{width}"
        )
    x, nudged = check_pixels(x, f"images of '{data.text}'")
    check_labels(y, victim, f" of '{data.text}'")
    return x.to(device), y.to(device), nudged


class MemoryBackoff:
    """Work on the rows of a batch, halved on out-of-memory; the size that fitted is remembered."""

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
    """A sample's record and its candidate, which is the clean image if none was made."""

    record: SampleRecord
    x_adv: Tensor


class BatchRunner:
    """One attack on one victim, batch by batch."""

    def __init__(self, victim: Victim, attack: Attack, job: Job, threat: Threat) -> None:
        self.victim, self.job, self.threat = victim, job, threat
        self.attack = attack.in_chunks(job.batch_size)
        self.backoff = MemoryBackoff(rows_at_once(attack, job))
        self._buffers = model_digest(victim, parameters=False)
        self._doubts: list[str] = []
        self._noted_backoffs = 0

    def doubt(self, *doubts: str) -> None:
        """Remember reasons not to trust the batch at hand; they are stored with its records."""
        self._doubts.extend(doubts)

    def take_notes(self, nudged: int = 0) -> BatchNotes:
        """What was noticed since the last call, for `Sink.write`."""
        doubts = dict.fromkeys([*self._doubts, *leak_doubts(self.victim, self._buffers)])
        notes = BatchNotes(tuple(doubts), self.backoff.backoffs - self._noted_backoffs, nudged)
        self._doubts, self._noted_backoffs = [], self.backoff.backoffs
        return notes

    def crafter(self, data: DataSet) -> Callable[[tuple[int, ...]], tuple[Tensor, list[Outcome]]]:
        """A callable from rows of a data set to their images and outcomes; what it notices is not noted."""

        def craft(rows: tuple[int, ...]) -> tuple[Tensor, list[Outcome]]:
            x, y, _ = read_batch(data, rows, self.victim, self.victim.mean.device)
            outcomes = self.outcomes(rows, x, y)
            self.take_notes()
            return x, outcomes

        return craft

    def outcomes(self, rows: Sequence[int], x: Tensor, y: Tensor) -> list[Outcome]:
        return self.backoff(lambda part: self._whole(rows[part], x[part], y[part]), 0, len(rows))

    def _whole(self, rows: Sequence[int], x: Tensor, y: Tensor) -> list[Outcome]:
        rng = SampleRng(self.job.seed, tuple(rows))
        clean = clean_answers(self.victim, x, y, rng, self.job.batch_size)
        attacked = clean.attacked
        others: dict[str, Tensor] = {}
        if not bool(attacked.all()):
            noise = rng.child("misclassified")
            with counting_passes(self.victim) as passes, lost_gradients_named(self.victim, x), seeded(noise):
                others = self.attack.on_misclassified(self.victim, x[~attacked], y[~attacked], rng=rng[~attacked])
            others |= _shared(passes, others, len(rng[~attacked]), x)
        outcomes = self._attacked(x, y, clean, rng, others)
        # Samples whose success was not confirmed are attacked once more, with other noise.
        loose = torch.tensor([outcome.record.fragile for outcome in outcomes], device=x.device)
        if bool(loose.any()) and self.attack.traits.second_try:
            again = CleanAnswers(clean.predictions[loose], attacked[loose])
            second = self._attacked(x[loose], y[loose], again, rng[loose].child("again"), {})
            by_row = {outcome.record.index: outcome for outcome in second}
            outcomes = [_firmer(outcome, by_row.get(outcome.record.index)) for outcome in outcomes]
        return outcomes

    def _attacked(
        self, x: Tensor, y: Tensor, clean: CleanAnswers, rng: SampleRng, others: dict[str, Tensor]
    ) -> list[Outcome]:
        attacked = clean.attacked
        crafted = Crafted(x[attacked], blank_evidence(x[attacked]))
        spent = {name: crafted.evidence[name] for name in ("forwards", "backwards")}
        if bool(attacked.any()):
            crafted, spent = self.crafted(x[attacked], y[attacked], rng[attacked])
        records = judge(
            self.victim, self.threat, rng, x, y, clean, crafted, spent["forwards"], spent["backwards"], others
        )
        x_adv = x.clone()
        x_adv[attacked] = crafted.x_adv.to(x.dtype)
        return [Outcome(record, candidate) for record, candidate in zip(records, x_adv, strict=True)]

    def crafted(self, x: Tensor, y: Tensor, rng: SampleRng) -> tuple[Crafted, dict[str, Tensor]]:
        """Candidates, and the passes counted per sample."""
        with seeded(rng.child("noise of the model")):
            crafted, passes = call_attack(self.attack, self.victim, x, y, rng)
        if isinstance(crafted, DoubtedCrafted):
            self.doubt(*crafted.doubts)
        return crafted, _shared(passes, crafted.evidence, len(x), x)


def _shared(passes: Passes, claims: Mapping[str, Tensor], n: int, x: Tensor) -> dict[str, Tensor]:
    """Counted passes spread over the samples as the attack claims."""
    blank = torch.zeros(n, dtype=torch.long, device=x.device)
    return {
        name: spread_passes(total, claims.get(name, blank))
        for name, total in (("forwards", passes.forwards), ("backwards", passes.backwards))
    }


def _firmer(first: Outcome, again: Outcome | None) -> Outcome:
    """The second try if it succeeded, else the first, at the price of both."""
    if again is None:
        return first
    forwards = first.record.forwards + again.record.forwards - 1
    backwards = first.record.backwards + again.record.backwards
    chosen = again if again.record.status == "fooled" else first
    return chosen._replace(record=replace(chosen.record, forwards=forwards, backwards=backwards))
