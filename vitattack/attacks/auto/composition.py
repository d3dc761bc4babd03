"""The composition of `auto`: its opening, a round, the runs for near ties, and those after AutoAttack."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from vitattack.attacks.auto.auto_stage import AutoStage
from vitattack.attacks.auto.numbering import MOST, TIES
from vitattack.attacks.autoattack.autoattack import apgd, apgd_ce, targets
from vitattack.attacks.base import Attack
from vitattack.attacks.compose import Stages
from vitattack.attacks.gradient.loop import Gradient
from vitattack.attacks.losses.plain import Margin
from vitattack.threats.lp import LpBall

TIED = 0.03  # of the median survivor's distance from the boundary: whether nearer ones fall hangs on noise
TIE_STEPS, TIE_CLASSES = 100, 5
LAST_STEPS, LAST_CLASSES, LAST_RUNS = 300, 3, 2  # after AutoAttack
CHUNK = 64  # samples of a block, or copies of some, in a batch


class Usual(NamedTuple):
    """Settings of `auto` in a norm: its opening, the length of runs in rounds, who gets rounds, and how many there are."""

    steps: int
    classes: int
    long: int
    share: float  # of the survivors: those that count as the nearest
    most: int


USUAL = Usual(10, 9, 50, 1 / 4, MOST)
USUAL_IN_L1 = Usual(20, 5, 100, 1 / 3, 1)


def breadth(short: Gradient, k: int) -> AutoStage:
    """Short runs towards each class."""
    return AutoStage("targets", targets(short, k=k))


def one_round(ball: LpBall, steps: int) -> tuple[AutoStage, ...]:
    """APGD on the margin and on cross-entropy."""
    return (
        AutoStage("apgd margin", apgd(ball, steps=steps, loss=Margin())),
        AutoStage("apgd_ce", apgd_ce(ball, steps=steps)),
    )


def long_runs(ball: LpBall, steps: int = TIE_STEPS, classes: int = TIE_CLASSES) -> Attack:
    """Long runs of APGD on the margin towards the likeliest classes."""
    runs = targets(apgd(ball, steps=steps, loss=Margin()), k=classes)
    return replace(runs, at_once=CHUNK)


def last_runs(ball: LpBall) -> Attack:
    """Runs three times as long towards fewer classes, each from a start of its own."""
    return Stages((long_runs(ball, LAST_STEPS, LAST_CLASSES),) * LAST_RUNS, fresh=True)


def tie_breaker(ball: LpBall) -> AutoStage:
    """Long runs towards the likeliest classes."""
    return AutoStage(TIES, long_runs(ball))
