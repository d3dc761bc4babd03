"""Standard training: cross-entropy on clean images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch.nn.functional as F
from torch import Tensor

from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.threats.lp import LpBall
from vitattack.train.objectives.base import Objective, checked_smoothing


@dataclass(frozen=True)
class Standard(Objective):
    """Cross-entropy on clean images."""

    smoothing: float = 0.0

    @property
    def robust_share(self) -> float:
        return 0.0

    def craft(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Tensor:
        return x

    def loss(self, victim: Attackable, x: Tensor, x_adv: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(victim(x), y, label_smoothing=self.smoothing)

    def limited(self, eps: float) -> Self:
        return self


def standard(ball: LpBall, *, smoothing: float = 0.0) -> Standard:
    """Cross-entropy on clean images."""
    return Standard(checked_smoothing(smoothing))
