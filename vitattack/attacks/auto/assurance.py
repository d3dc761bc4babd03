"""What the survivors of a finished run still meet: a probe of some of them and, if it breaks one, AutoAttack on all."""

from __future__ import annotations

from dataclasses import dataclass

from vitattack.attacks.autoattack.autoattack import VERSIONS, apgd, apgd_ce, autoattack
from vitattack.attacks.base import Attack
from vitattack.attacks.black_box.square import square
from vitattack.attacks.compose import Stages
from vitattack.attacks.losses import Margin
from vitattack.threats.lp import LpBall

QUERIES, STEPS = 150, 20
PROBE = (f"square({QUERIES})", f"apgd_ce({STEPS})", f"apgd margin({STEPS})")
STAGES = (*(f"probe {name}" for name in PROBE), *(f"full {name}" for name in VERSIONS["standard"]))


@dataclass(frozen=True)
class Assurance:
    """`probe` asks for logits alone, then compares cross-entropy with the margin; `full` is AutoAttack.

    `price`: passes of a probed sample that stands, its clean forward and the judge's look included. All probed samples
    together cost at most `share` of what the run has cost. `first` is the number of the probe's first stage.
    """

    probe: Attack
    full: Attack
    price: int
    first: int
    share: float = 0.15


def assurance(ball: LpBall, first: int) -> Assurance:
    """For an attack whose own stages are those before `first`."""
    probe = Stages(
        (square(ball, queries=QUERIES), apgd_ce(ball, steps=STEPS), apgd(ball, steps=STEPS, loss=Margin())), fresh=True
    )
    price = (QUERIES + 1) + 2 * (2 * STEPS + 1) + 2
    return Assurance(probe, autoattack(ball), price, first)
