"""The certificate that a result of `auto` carries: how many planted examples it finds on the same model, at a small price."""

from __future__ import annotations

from typing import Any

from vitattack.checks.certificate import IMAGES, Certificate, certify, first_images
from vitattack.core.errors import VitattackError, first_line
from vitattack.core.progress import stage
from vitattack.core.runtime import numerics
from vitattack.evaluation.attachments import Occasion
from vitattack.records.report_section import Section
from vitattack.records.stats import mean_passes
from vitattack.threats.lp import NORMS, LpBall

SHARE = 0.12  # of the passes of the run that the certificate may take, unless nothing planted is found
PRICE = 160  # passes per image: inner points, random points, and `auto`, to which a planted example falls early
LEAST = 8  # images, below which a certificate says too little


def certificate_of_run(occasion: Occasion) -> Section:
    """Certify `auto` on as many of the run's images as a share of its passes pays for."""
    ball, result = occasion.threat, occasion.result
    if not isinstance(ball, LpBall) or ball.norm not in NORMS or ball.eps <= 0:
        return _without(f"it is for linf and l2 balls of a budget above zero, not for {ball}")
    attacked = sum(record.clean == record.label for record in result.records)
    images = min(IMAGES, int(SHARE * attacked * sum(mean_passes(result.records)) / PRICE))
    if images < LEAST:
        return _without(f"{SHARE:.0%} of so few passes do not pay for {LEAST} images")
    try:
        with numerics(result.job.threads), stage("certificate"):
            found = _certified(occasion, ball, images)
    except (RuntimeError, VitattackError) as error:  # the result stands without one
        reason = first_line(error) or type(error).__name__
        return Section("certificate", {"says_nothing": reason}, notes=(f"certificate: none, since {reason}",))
    attack = result.job.attack
    return Section("certificate", found.json(), notes=(found.line(attack),), doubts=_doubts(occasion, found, attack))


def _without(reason: str) -> Section:
    return Section("certificate", {"says_nothing": reason})


def _certified(occasion: Occasion, ball: LpBall, images: int) -> Certificate:
    prepared, job = occasion.prepared, occasion.result.job
    settings: dict[str, Any] = {"seed": job.seed, "batch_size": job.batch_size, "precision": job.precision}
    return certify(prepared.victim, first_images(prepared, images), ball, (job.attack,), **settings)


def _doubts(occasion: Occasion, found: Certificate, attack: str) -> tuple[str, ...]:
    if found.says_nothing or found.is_passed_by(attack):
        return ()
    return (
        f"{attack} finds only {found.found_by(attack)} of {found.tested} examples that are planted in this model: others may be "
        f"missed as well, and the number is an upper bound; {occasion.result.job.next_run('square(queries=20000)')}",
    )
