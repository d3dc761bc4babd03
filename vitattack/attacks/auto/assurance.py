"""Assurance of `auto`: a probe of some survivors of a finished run and, if one falls, AutoAttack and more on all of them."""

from __future__ import annotations

from vitattack.attacks.auto.composition import last_runs, long_runs
from vitattack.attacks.auto.numbering import FULL, PROBE, QUERIES, STEPS
from vitattack.attacks.autoattack.autoattack import apgd, apgd_ce, autoattack
from vitattack.attacks.base import Assurance
from vitattack.attacks.black_box.square import square
from vitattack.attacks.compose import Stages
from vitattack.attacks.losses.plain import Margin
from vitattack.attacks.price import CLEAN_AND_VERDICT, PriceQuery
from vitattack.threats.lp import LpBall


def assurance(ball: LpBall, first: int) -> Assurance:
    """Assurance of an attack whose own stages have numbers below `first`.

    The probe first uses logits alone, then gradients of cross-entropy and of the margin. AutoAttack is followed by the
    long runs that near ties get, since the plain margin breaks what the ratio of differences leaves, and by longer ones.
    """
    probe = Stages(
        (square(ball, queries=QUERIES), apgd_ce(ball, steps=STEPS), apgd(ball, steps=STEPS, loss=Margin())), fresh=True
    )
    price = CLEAN_AND_VERDICT.plus(
        probe.price(PriceQuery(classes=2, threat=ball)).victim
    )  # it does not depend on the number of classes
    whole = autoattack(ball)
    full = Stages((*whole.parts, long_runs(ball), last_runs(ball)), names=FULL)
    return Assurance(probe, full, int(price.total), first, first + len(PROBE))
