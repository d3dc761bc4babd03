"""A weighted sum of an adversarial and a clean loss of one prediction (phase 2 of TORA-ViT: Li and Xu, CVPR 2023)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch.nn.functional as F
from torch import Tensor

from vitattack.attacks.base import Attack
from vitattack.attacks.gradient.variants import fgsm_rs
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.threats.lp import LpBall
from vitattack.train.objectives.base import Objective, checked_smoothing
from vitattack.train.objectives.pgd_at import AdversarialCrossEntropy


@dataclass(frozen=True)
class TradeOff(Objective):
    """`share` times the objective `rob`, and 1 - `share` times the cross-entropy on clean images."""

    rob: Objective
    share: float
    smoothing: float = 0.0

    @property
    def robust_share(self) -> float:
        return self.share

    @property
    def inner_attack(self) -> Attack | None:
        return self.rob.inner_attack

    def craft(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Tensor:
        return self.rob.craft(victim, x, y, rng=rng) if self.share else x

    def loss(self, victim: Attackable, x: Tensor, x_adv: Tensor, y: Tensor) -> Tensor:
        return self._sum(victim, x, y, self.rob.loss(victim, x, x_adv, y) if self.share else None)

    def craft_and_loss(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Tensor:
        return self._sum(victim, x, y, self.rob.craft_and_loss(victim, x, y, rng=rng) if self.share else None)

    def limited(self, eps: float) -> Self:
        return replace(self, rob=self.rob.limited(eps))

    def _sum(self, victim: Attackable, x: Tensor, y: Tensor, robust: Tensor | None) -> Tensor:
        terms = [] if robust is None else [self.share * robust]
        if self.share < 1:
            terms.append((1 - self.share) * F.cross_entropy(victim(x), y, label_smoothing=self.smoothing))
        total: Tensor = sum(terms[1:], terms[0])
        return total


def default_rob(ball: LpBall) -> AdversarialCrossEntropy:
    """Cross-entropy after one step of 1.25 eps from a random point of the ball (FGSM-RS)."""
    return AdversarialCrossEntropy(fgsm_rs(ball, step=1.25, stop="never"))


def trade_off(ball: LpBall, *, share: float = 0.5, rob: Objective | None = None, smoothing: float = 0.0) -> TradeOff:
    """`share` of an adversarial objective and 1 - share of clean cross-entropy, such as trade_off(share=0.1, rob=trades).

    `rob` is fgsm(kind=rs) unless given; `smoothing` is that of the clean labels.
    """
    if not 0 <= share <= 1:
        raise UsageError(f"trade_off(share=...) is the weight of the adversarial loss, from 0 to 1, not {share:g}")
    return TradeOff(rob or default_rob(ball), share, checked_smoothing(smoothing))
