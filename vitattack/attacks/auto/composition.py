"""The stages that `auto` is composed of: its opening, a round, and the runs that settle near ties, in each norm."""

from __future__ import annotations

from dataclasses import replace

from vitattack.attacks.auto.auto_stage import AutoStage
from vitattack.attacks.auto.numbering import IN_L1, TIES
from vitattack.attacks.autoattack.autoattack import apgd, apgd_ce, targets
from vitattack.attacks.base import Attack
from vitattack.attacks.compose import Stages
from vitattack.attacks.gradient.loop import Gradient
from vitattack.attacks.losses.plain import Margin
from vitattack.attacks.minimum_norm.fab import fab_t
from vitattack.threats.lp import LpBall

TIED = 0.03  # of the median survivor's distance from the boundary: whether nearer ones fall hangs on noise
TIE_STEPS, TIE_CLASSES = 100, 5
CHUNK = 64  # samples of a block, or copies of some, in a batch
L1_STEPS, L1_CLASSES = 20, 3  # of FAB and of APGD in a round


def breadth(short: Gradient, k: int) -> AutoStage:
    """Short runs towards each class."""
    return AutoStage("targets", targets(short, k=k))


def one_round(ball: LpBall, steps: int) -> tuple[AutoStage, ...]:
    """APGD on the margin and on cross-entropy; in l1, where length hardly helps, FAB and new starts towards few classes."""
    if ball.norm == "l1":
        (boundary, again), few = IN_L1, min(steps, L1_STEPS)
        return (
            AutoStage(boundary, fab_t(ball, steps=few, targets=L1_CLASSES)),
            AutoStage(again, targets(apgd(ball, steps=few, loss=Margin()), k=L1_CLASSES)),
        )
    return (
        AutoStage("apgd margin", apgd(ball, steps=steps, loss=Margin())),
        AutoStage("apgd_ce", apgd_ce(ball, steps=steps)),
    )


def long_runs(ball: LpBall) -> Attack:
    """Long runs of APGD on the margin towards the likeliest classes."""
    runs = targets(apgd(ball, steps=TIE_STEPS, loss=Margin()), k=TIE_CLASSES)
    return replace(runs, at_once=CHUNK)


def tie_breaker(ball: LpBall) -> AutoStage:
    """Long runs towards the likeliest classes, in l1 after FAB."""
    if ball.norm != "l1":
        return AutoStage(TIES, long_runs(ball))
    boundary = fab_t(ball, steps=TIE_STEPS, targets=TIE_CLASSES)
    return AutoStage(TIES, Stages((boundary, long_runs(ball)), fresh=True))
