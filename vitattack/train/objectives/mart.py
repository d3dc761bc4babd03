"""MART, misclassification-aware training (Wang et al., ICLR 2020)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitattack.attacks.base import Attack
from vitattack.attacks.gradient.starts import Gauss
from vitattack.attacks.gradient.variants import pgd
from vitattack.attacks.losses.base import of_class
from vitattack.core.errors import UsageError
from vitattack.models.base import Attackable
from vitattack.threats.lp import LpBall
from vitattack.train.objectives.base import AdversarialObjective
from vitattack.train.objectives.inner_attack import for_training


@dataclass(frozen=True)
class Mart(AdversarialObjective):
    """Boosted cross-entropy on attacked images plus a KL term weighted by how wrong the clean output is."""

    beta: float = 5.0

    def loss(self, victim: Attackable, x: Tensor, x_adv: Tensor, y: Tensor) -> Tensor:
        if y.is_floating_point():
            raise UsageError("mart needs class numbers: drop the augmentations that mix labels")
        attacked, log_p = victim(x_adv), victim(x).log_softmax(1)
        p, q = log_p.exp(), attacked.softmax(1)
        wrong = q.scatter(1, y[:, None], 0.0).amax(1)
        boosted = F.cross_entropy(attacked, y) - torch.log(1.0001 - wrong + 1e-12).mean()
        kl = (p * (log_p - torch.log(q + 1e-12))).sum(1)  # p log p would have no gradient where p is 0
        total: Tensor = boosted + self.beta * (kl * (1.0000001 - of_class(p, y))).mean()
        return total


def mart(ball: LpBall, *, beta: float = 5.0, inner: Attack | None = None) -> Mart:
    """Misclassification-aware training (Wang et al., ICLR 2020).

    The inner attack is pgd(preset=trades_train): cross-entropy, 10 steps of 0.007/0.031 eps from a small normal step.
    """
    if beta < 0:
        raise UsageError("mart(beta=...) weighs the KL term by at least 0")
    return Mart(for_training(inner or pgd(ball, start=Gauss(), preset="trades_train")), beta)
