"""Cross-entropy on attacked images: PGD-AT (Madry et al., ICLR 2018) and its single-step relatives, FGSM-RS and N-FGSM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from vitattack.attacks.base import Attack
from vitattack.attacks.gradient.loop import Gradient
from vitattack.attacks.gradient.starts import Uniform
from vitattack.attacks.gradient.steps import Steepest
from vitattack.attacks.gradient.variants import fgsm_rs, pgd
from vitattack.attacks.losses.plain import CrossEntropy
from vitattack.core.errors import UsageError
from vitattack.models.base import Attackable
from vitattack.threats.lp import LpBall
from vitattack.train.objectives.base import AdversarialObjective, checked_smoothing
from vitattack.train.objectives.budgets import Unprojected
from vitattack.train.objectives.inner_attack import for_training


@dataclass(frozen=True)
class AdversarialCrossEntropy(AdversarialObjective):
    """Cross-entropy on the images that the inner attack crafts."""

    smoothing: float = 0.0

    def loss(self, victim: Attackable, x: Tensor, x_adv: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(victim(x_adv), y, label_smoothing=self.smoothing)


def pgd_at(ball: LpBall, *, inner: Attack | None = None, smoothing: float = 0.0) -> AdversarialCrossEntropy:
    """Cross-entropy on attacked images; the inner attack is pgd(steps=10, step=0.25) unless one is given."""
    attack = for_training(inner or pgd(ball, steps=10, step=0.25))
    return AdversarialCrossEntropy(attack, checked_smoothing(smoothing))


def fgsm_at(
    ball: LpBall,
    *,
    kind: Literal["n", "rs"] = "n",
    step: float | None = None,
    noise: float = 2.0,
    smoothing: float = 0.0,
) -> AdversarialCrossEntropy:
    """One signed gradient step from noise: `n` never projects (de Jorge et al. 2022), `rs` does (Wong et al. 2020).

    `step` is in multiples of eps, 1 for n and 1.25 for rs; `noise`, for n alone, is the width of its start.
    """
    if kind == "rs":
        if noise != 2.0:
            raise UsageError("fgsm(kind=rs) starts in the ball: noise is for kind=n")
        projected = fgsm_rs(ball, step=1.25 if step is None else step, stop="never")
        return AdversarialCrossEntropy(projected, checked_smoothing(smoothing))
    if noise < 0:
        raise UsageError("fgsm(noise=...) is a width of at least 0, in multiples of eps")
    rule = Steepest(1.0 if step is None else step)
    unprojected = Gradient(Unprojected(ball.norm, ball.eps, noise), 1, rule, CrossEntropy(), Uniform(), "never")
    return AdversarialCrossEntropy(unprojected, checked_smoothing(smoothing))
