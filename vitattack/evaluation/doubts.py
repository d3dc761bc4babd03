"""Doubts: reasons not to trust a number, collected during a run and shown beside it. They never change it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from vitattack.attacks.autoattack.flags import doubts_of
from vitattack.core.versions import mixed_versions
from vitattack.core.words import printable
from vitattack.evaluation.random_models import BY_BATCH
from vitattack.models.victim import Victim, frozen, model_digest
from vitattack.records import stats
from vitattack.records.batch import BatchNotes
from vitattack.records.draws import CLEAN, number_of_draws
from vitattack.records.record import SampleRecord


def model_doubts(victim: Victim, x: Tensor) -> list[str]:
    """Doubts from one forward of the first batch: probabilities for logits, test-time adaptation."""
    found = []
    with frozen(victim), torch.no_grad(), _autograd_calls() as calls:
        one = victim(x)
    if calls:
        found.append(
            "the model differentiates inside its own forward pass: it adapts to each input, and attacks that do not "
            "know how understate what an attacker could do"
        )
    sums = one.sum(1)
    if bool((one >= 0).all()) and bool(((sums - 1).abs() < 1e-4).all()):
        found.append("the model returns probabilities, not logits: their gradients vanish; attack the layer before")
    return found


def leak_doubts(victim: Victim, buffers: str) -> list[str]:
    """A doubt if the buffers no longer have the digest they had before anything was attacked."""
    if model_digest(victim, parameters=False) == buffers:
        return []
    return ["the model changed its buffers while it was attacked: its state leaks between images"]


def unverified_doubts(model: Mapping[str, Any]) -> list[str]:
    """Facts of a model that nobody has confirmed, from the record of its origin."""
    found = []
    moving = [
        key for key in model.get("unverified", ()) if key in ("normalize", "transform")
    ]  # facts that change numbers
    if moving:
        found.append(
            f"nobody has confirmed the {' and '.join(moving)} of this zoo entry: compare the clean accuracy with its source"
        )
    if unhashed := model.get("unhashed", ()):
        more = f" and {len(unhashed) - 1} more" if len(unhashed) > 1 else ""
        found.append(
            f"the model holds {printable(unhashed[0])}{more}, which cannot be hashed: stored runs of it are never reused"
        )
    return found


def class_coverage(records: Sequence[SampleRecord], of: int | None) -> list[str]:
    """A doubt if the images are of far fewer classes than so many images of a mixed set would be."""
    n, covered = len(records), len({record.label for record in records})
    if not of or covered >= 0.75 * of * (1 - (1 - 1 / of) ** n):
        return []
    return [
        f"the {n} images are of {covered} of the {of} classes: their accuracy is not that of the data set; "
        "--limit N draws from all classes"
    ]


@contextmanager
def _autograd_calls() -> Iterator[list[str]]:
    """Names of autograd's entry points as they are called. Uses sys.setprofile, which debuggers and coverage leave alone.

    Under a profiler that cannot be put back, as cProfile, nothing is watched.
    """
    calls: list[str] = []
    before = sys.getprofile()
    found: object = before  # of cProfile it is no function, whatever its type says
    if found is not None and not callable(found):
        yield calls
        return

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_name in ("grad", "backward", "_make_grads"):
            calls.append(frame.f_code.co_name)

    sys.setprofile(watch)
    try:
        yield calls
    finally:
        sys.setprofile(before)


@dataclass(frozen=True)
class Doubts:
    """Doubts about one job, from its records, the notes of its batches, its events and its attack."""

    records: Sequence[SampleRecord]
    notes: BatchNotes
    events: Sequence[dict[str, Any]]
    of_attack: Sequence[str]
    expected_clean: stats.Accuracy | None
    advice: str = ""  # the next command against a random model

    def all(self) -> tuple[str, ...]:
        mixed = mixed_versions([event["versions"] for event in self.events if "versions" in event])
        return tuple(dict.fromkeys([*self.notes.doubts, *mixed, *self.of_attack, *self._counted(), *self._clean()]))

    def _counted(self) -> Iterator[str]:
        n = len(self.records)
        invalid = sum(r.status == "invalid" for r in self.records)
        violations = sum(r.violation for r in self.records)
        fragile = sum(r.fragile for r in self.records)
        outside = sum(r.status == "robust" and bool(r.evidence.get("outside")) for r in self.records)
        if invalid:
            yield f"{invalid} of {n} samples have no valid verdict (NaN outputs or no candidate inside the budget)"
        if violations:
            yield f"{violations} candidates broke the budget and were discarded"
        drawn = [r for r in self.records if "draws" in r.evidence and CLEAN not in r.evidence]
        if drawn:
            yield (
                f"the model is random on some inputs: {len(drawn)} of {n} candidates were answered differently by two equal "
                f"forwards and count as most of {number_of_draws(drawn)} draws do{self.advice}"
            )
        if fragile and any(BY_BATCH in doubt for doubt in self.notes.doubts):
            yield f"{fragile} successes held in one batch and not in another: their samples count as robust"
        elif fragile:
            yield f"{fragile} successes were not reproduced at another batch size: their samples count as robust"
        if outside:
            yield f"{outside} candidates of a foreign attack lay outside the budget and were dropped: they count as robust"
        yield from doubts_of([max(0, int(r.evidence.get("flags", 0))) for r in self.records])
        if self.notes.backoffs:
            yield f"out of memory: batches were halved {self.notes.backoffs} times, so records may differ from a run without"
        if self.notes.nudged:
            yield f"{self.notes.nudged} images lay outside [0,1] by rounding and were clipped"

    def _clean(self) -> Iterator[str]:
        if self.expected_clean is None:
            return
        found, expected = stats.clean_accuracy(self.records), self.expected_clean
        if stats.differ(found, expected):
            yield (
                f"clean accuracy {found.accuracy:.1%} does not fit the {expected.accuracy:.1%} its entry reports: "
                "check weights, normalisation and transform"
            )
