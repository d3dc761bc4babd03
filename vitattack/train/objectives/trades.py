"""TRADES (Zhang et al., ICML 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from vitattack.attacks.base import Attack
from vitattack.attacks.gradient.starts import Clean
from vitattack.attacks.gradient.variants import pgd
from vitattack.attacks.losses.remembering import KLToClean
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.threats.lp import LpBall
from vitattack.train.objectives.base import AdversarialObjective, checked_smoothing
from vitattack.train.objectives.inner_attack import for_training, gradient_attacks
from vitattack.train.objectives.shared_forward import shared_clean_forward


@dataclass(frozen=True)
class Trades(AdversarialObjective):
    """Clean cross-entropy plus `beta` times the KL divergence of the attacked output from the clean one."""

    beta: float = 6.0
    smoothing: float = 0.0

    def loss(self, victim: Attackable, x: Tensor, x_adv: Tensor, y: Tensor) -> Tensor:
        clean, attacked = victim(x), victim(x_adv)
        natural = F.cross_entropy(clean, y, label_smoothing=self.smoothing)
        kl = F.kl_div(attacked.log_softmax(1), clean.log_softmax(1), reduction="batchmean", log_target=True)
        total: Tensor = natural + self.beta * kl
        return total

    def craft_and_loss(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Tensor:
        """One clean forward serves as the target of the attack and as a term of the loss."""
        with shared_clean_forward(victim, x):
            return super().craft_and_loss(victim, x, y, rng=rng)


def trades(ball: LpBall, *, beta: float = 6.0, inner: Attack | None = None, smoothing: float = 0.0) -> Trades:
    """Clean cross-entropy plus beta KL(clean, attacked), both with gradient (Zhang et al., ICML 2019).

    The inner attack is pgd(loss=kl_to, preset=trades_train): 10 steps of 0.007/0.031 eps from a small normal step off x.
    """
    attack = for_training(inner or pgd(ball, loss=KLToClean(), preset="trades_train"))
    for gradient in gradient_attacks(attack):
        if isinstance(gradient.loss, KLToClean) and isinstance(gradient.start, Clean):
            raise UsageError(
                "trades started exactly at x has no gradient, since KL is 0 and flat there: start=gauss or start=uniform"
            )
    if beta < 0:
        raise UsageError("trades(beta=...) weighs the KL term by at least 0")
    return Trades(attack, beta, checked_smoothing(smoothing))
