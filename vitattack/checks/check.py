"""`check`: the run of `auto`, the list of checks, the certificate, and the verdict on a claim."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import nn

from vitattack.attacks import attack_text
from vitattack.checks.certificate import CERTIFIED, IMAGES, Certificate, certify, first_images
from vitattack.checks.claim import Claim
from vitattack.checks.item import Item
from vitattack.checks.items import of_attack, of_gradient, of_model
from vitattack.checks.subject import FEW, Subject
from vitattack.checks.verdict import Verdict as Judgement
from vitattack.checks.verdict import judge
from vitattack.core.errors import UsageError
from vitattack.core.progress import in_stage, stage
from vitattack.core.runtime import numerics, resolve_device
from vitattack.data import DataSet
from vitattack.evaluation.batch_runner import read_batch
from vitattack.evaluation.evaluate import evaluate
from vitattack.evaluation.listener import EvaluationListener
from vitattack.evaluation.prepare import Prepared, prepare
from vitattack.evaluation.setup import DEFAULT_MODEL, DEFAULT_THREAT, Setup, SetupFields
from vitattack.models.lost_gradients import NoGradient
from vitattack.records import stats
from vitattack.records.next_command import given_as
from vitattack.records.result import Result
from vitattack.records.stats import Accuracy, Verdict
from vitattack.threats.base import parse_threat
from vitattack.threats.lp import NORMS, LpBall

if TYPE_CHECKING:
    from vitattack.threats.base import Threat

ATTACK = "auto"
PLAIN = "pgd(steps=20)"  # shown beside `auto` in the certificate: what most papers report
FOLDER = "check"  # in the store, for the attacks on a few images
CHECKS: dict[str, Callable[[Subject], Item]] = {
    "determinism": of_model.determinism,
    "input range": of_model.input_range,
    "clean accuracy": of_model.clean_accuracy,
    "train mode": of_model.train_mode,
    "attention softmax": of_model.attention_softmax,
    "gradient fidelity": of_gradient.fidelity,
    "zero gradients": of_gradient.zero_gradients,
    "unstable loss": of_gradient.unstable_loss,
    "first-order stationarity": of_gradient.first_order,
    "incomplete optimisation": of_gradient.incomplete_optimisation,
    "losses": of_attack.losses,
    "one step": of_attack.one_step,
    "more steps": of_attack.more_steps,
    "restarts": of_attack.restarts,
    "fp64": of_attack.double_precision,
    "random noise": of_attack.random_direction,
    "black box": of_attack.black_box,
    "attention scaling": of_attack.attention_scaling,
    "transfer": of_attack.transfer,
    "budgets": of_attack.budgets,
    "8-bit images": of_gradient.eight_bits,
}


@dataclass(frozen=True)
class Checked:
    """A model's robust accuracy under `auto` and everything else that ran, the checks, the certificate, and the verdict."""

    claim: Claim | None
    auto: Result
    best: Accuracy  # per-image worst case of auto and all attacks of the checks
    items: tuple[Item, ...]
    certificate: Certificate
    verdict: Judgement

    @property
    def line(self) -> str:
        """The verdict with its reasons."""
        return f"{self.verdict.word}: {'; '.join(self.verdict.reasons)}"

    def json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "model": self.auto.job.model,
            "threat": self.auto.job.threat,
            "data": self.auto.job.data,
            "claim": self.claim.share if self.claim else None,
            "claimed_count": self.claim.json() if self.claim else None,
            "verdict": self.verdict.word,
            "reasons": list(self.verdict.reasons),
            "clean": self.auto.clean.json(),
            "auto": self.auto.robust.json(),
            "best": self.best.json(),
            "checks": [item.json() for item in self.items],
            "certificate": self.certificate.json(),
            "doubts": list(self.auto.doubts),
            "provenance": self.auto.provenance,
        }


@torch.inference_mode(False)
def check(
    model: nn.Module | str = DEFAULT_MODEL,
    *,
    claim: float | str | None = None,
    threat: str = DEFAULT_THREAT,
    setup: Setup | None = None,
    listener: EvaluationListener | None = None,
    **fields: Unpack[SetupFields],
) -> Checked:
    """Check whether a model is as robust as claimed, and whether the attack could tell.

    `claim` is a share between 0 and 1 of images like these, or a count on these very images, such as "41/128"; without one
    the number that `auto` finds is checked. Settings are those of `evaluate`.
    """
    claimed = None if claim is None else Claim.of(claim)
    ball = checkable(parse_threat(threat))
    setup = replace(setup or Setup(), **fields)
    if setup.shard != (0, 1):
        raise UsageError("a check is of a whole run: drop the shard")
    alone = replace(setup, certificate=False, check=False)
    prepared = prepare(model, alone, resolve_device(setup.device, model))
    if claimed is not None:
        claimed.check_images(len(prepared.images))
    (auto,) = evaluate(model, ATTACK, threat=threat, setup=alone, listener=listener).results
    with numerics(setup.cores), given_as(setup.given(model)):
        return check_result(prepared, ball, auto, claimed)


def check_result(prepared: Prepared, ball: LpBall, auto: Result, claim: Claim | None = None) -> Checked:
    """Check a claim, or the number itself, of a finished run of `auto` on a model that is at hand."""
    subject = _subject(prepared, ball, auto)
    items = [_asked(subject, name) for name in in_stage("checks", tuple(CHECKS))] if subject.rows else []
    with stage("certificate"):
        certificate = _certificate(prepared, ball)
    items.append(_of_certificate(subject, certificate))
    best = _worst_case(auto, subject)
    return Checked(claim, auto, best, tuple(items), certificate, judge(claim, best, items))


def checkable(threat: Threat) -> LpBall:
    """The threat, if the checks know its kind."""
    if not isinstance(threat, LpBall) or threat.norm not in NORMS or threat.eps <= 0:
        raise UsageError(
            f"check knows linf and l2 balls of a budget above zero, not '{threat}': write linf:8/255 or l2:0.5"
        )
    return threat


def _subject(prepared: Prepared, ball: LpBall, auto: Result) -> Subject:
    """The model with its first correctly classified images."""
    rows = prepared.images.alike([r.index for r in auto.records if r.clean == r.label])[:FEW]
    device = prepared.victim.mean.device
    x, y, _ = read_batch(prepared.images, rows or prepared.images.rows[:1], prepared.victim, device)
    others = _others(prepared, rows)

    def run(attacks: Sequence[str], ball: LpBall) -> Sequence[Result]:
        own: dict[str, Any] = {"data": (x, y), "limit": None, "transform": None, "precision": "fp32"}
        own |= {"certificate": False, "check": False}
        out = None if prepared.setup.out is None else Path(prepared.setup.out) / FOLDER
        learns = any(attack_text.build(attack, ball).traits.learns for attack in attacks)
        setup = replace(prepared.setup, **own, calibration=others if learns else None, out=out)
        return evaluate(prepared.victim, attacks, threat=str(ball), setup=setup).results

    return Subject(prepared, ball, auto, (x, y), rows, run, others is not None)


def _others(prepared: Prepared, few: Sequence[int]) -> DataSet | None:
    """Images for attacks that learn from some: calibration images, or those of the run that are not among the few."""
    images = prepared.images
    rest = images.alike([row for row in images.rows if row not in few])[:FEW]
    left = replace(images, rows=rest, text=f"{images.text} (beyond the few)") if rest else None
    return prepared.calibration(required=False) or left


def _asked(subject: Subject, name: str) -> Item:
    """The outcome of a check; one that needs gradients fails where the model has none."""
    try:
        with stage(name):
            return CHECKS[name](subject)
    except NoGradient:
        return Item(name, "Can it be asked at all?", "the model has no gradient", "a gradient", "", False)


def _certificate(prepared: Prepared, ball: LpBall) -> Certificate:
    setup = prepared.setup
    x = first_images(prepared, IMAGES)
    return certify(prepared.victim, x, ball, (PLAIN, ATTACK), seed=setup.seed, batch_size=setup.batch_size)


def _of_certificate(subject: Subject, certificate: Certificate) -> Item:
    passed = None if certificate.says_nothing else certificate.is_passed_by(ATTACK)
    return Item(
        "certificate",
        "Does auto find examples that are planted in the model?",
        certificate.says_nothing or f"{certificate.found_by(ATTACK)} of {certificate.tested} found",
        f"at least {CERTIFIED:.0%}",
        "Zimmermann et al., NeurIPS 2022",
        passed,
        decisive=True,
        next=subject.next("square(queries=20000)"),
    )


def _worst_case(auto: Result, subject: Subject) -> Accuracy:
    """The accuracy that is left where every attack within the budget counts, on the few images that it ran on."""
    own = {record.index: Verdict.of(record) for record in auto.records}
    return stats.worst_case([own, *(own | verdicts for verdicts in subject.verdicts)])
