"""Universal perturbations: one change within the budget for all images (Moosavi-Dezfooli et al., CVPR 2017)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vitattack.attacks.catalogue import catalogued
from vitattack.attacks.gradient.loop import Gradient
from vitattack.attacks.gradient.starts import Start, Uniform
from vitattack.attacks.gradient.steps import Cosine, Momentum, Steepest
from vitattack.attacks.losses.base import AnyLoss
from vitattack.attacks.losses.plain import Margin
from vitattack.attacks.universal.shared import GREY, Shared
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.threats.lp import LpBall, shifted


@dataclass(frozen=True)
class Universal(Shared):
    """One perturbation for all images."""

    def put(self, image: Tensor, x: Tensor, y: Tensor, victim: Attackable, rng: SampleRng) -> tuple[Tensor, ...]:
        return (shifted(x, image - GREY),)


@catalogued(
    paper="Moosavi-Dezfooli et al., CVPR 2017, by gradients as in Shafahi et al., AAAI 2020",
    quick="universal(steps=5, batch=4)",
    draws=False,
)
def universal(
    ball: LpBall,
    *,
    steps: int = 200,
    step: float = 0.1,
    batch: int = 32,
    loss: AnyLoss = Margin(),
    start: Start = Uniform(),
) -> Universal:
    """A universal perturbation: one change within the budget, made on calibration images and judged on the others.

    It is made once per run by 200 steps on the mean loss of 32 images each, with momentum and steps that fall along half a
    cosine, and kept with the run; every image then costs one forward.
    """
    rule = Momentum(step, Cosine()) if ball.norm == "linf" else Steepest(step, Cosine())
    return Universal(Gradient(ball, steps, rule, loss, start, "never"), batch)
