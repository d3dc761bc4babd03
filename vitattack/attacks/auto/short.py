"""The short ascent of `auto`: what opens a run towards each class, and what its trials are made of."""

from __future__ import annotations

from vitattack.attacks.autoattack.autoattack import apgd
from vitattack.attacks.gradient.loop import Gradient
from vitattack.attacks.gradient.starts import Corner
from vitattack.attacks.gradient.steps import Cosine, HeavyBall
from vitattack.attacks.gradient.variants import pgd
from vitattack.attacks.losses.plain import Margin
from vitattack.threats.lp import LpBall


def short_ascent(ball: LpBall, steps: int) -> Gradient:
    """Steps on the margin from a corner of the ball, momentum 0.75, cosine from 2 eps.

    In l1, where a corner is a single pixel, APGD instead.
    """
    if ball.norm == "l1":
        return apgd(ball, steps=steps, loss=Margin())
    return pgd(ball, steps=steps, loss=Margin(), start=Corner(), rule=HeavyBall(2.0, Cosine()))
