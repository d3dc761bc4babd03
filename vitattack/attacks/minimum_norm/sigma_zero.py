"""Sigma-zero: few changed features by Adam on a smooth count, with a threshold that adapts (Cina et al., ICLR 2025)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from vitattack.attacks.catalogue import catalogued
from vitattack.attacks.losses.base import best_wrong, of_class
from vitattack.attacks.minimum_norm.best_so_far import Stop
from vitattack.attacks.minimum_norm.cw_l2 import ADAM_EPS, BETA1, BETA2
from vitattack.attacks.minimum_norm.walk import Rows, View, Walk
from vitattack.core.errors import UsageError
from vitattack.threats.base import per_row
from vitattack.threats.lp import LpBall
from vitattack.threats.sparse import L0Ball

ADAPTION = 0.01  # of the threshold, times the step


@dataclass(frozen=True)
class SigmaZero(Walk):
    """Adam on the missing margin plus the mean of d / (d + sigma) over what the threat counts, d its squared change.

    Gradients are divided by their largest entry. After each step changes below a threshold are undone; it rises while the
    point fools the victim and falls while it does not.
    """

    length: float = 1.0
    sigma: float = 1e-3
    threshold: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.length > 0 and self.sigma > 0 and 0 <= self.threshold <= 1):
            raise UsageError("sigma_zero needs a positive length, a positive sigma and a threshold from 0 to 1")

    @property
    def name(self) -> str:
        return "sigma_zero"

    @property
    def counted(self) -> L0Ball:
        assert isinstance(self.ball, L0Ball)
        return self.ball

    def begin(self, x: Tensor, logits: Tensor, y: Tensor) -> Rows:
        blank = x.new_zeros(x.shape)
        return {"mean": blank, "square": blank, "threshold": x.new_full((len(x),), self.threshold)}

    def objective(self, logits: Tensor, y: Tensor, x: Tensor, point: Tensor, rows: Rows) -> Tensor:
        missing = (of_class(logits, y) - best_wrong(logits, y)).clamp_min(0)
        square = self.counted.grouped((point - x).square())
        return -missing - (square / (square + self.sigma)).mean(1)

    def step(self, x: Tensor, point: Tensor, rows: Rows, seen: View, t: int) -> tuple[Tensor, Rows]:
        grad = -seen.grad / per_row(seen.grad.flatten(1).abs().amax(1).clamp_min(1e-12), x)
        mean = BETA1 * rows["mean"] + (1 - BETA1) * grad
        square = BETA2 * rows["square"] + (1 - BETA2) * grad.square()
        spread = (square / (1 - BETA2 ** (t + 1))).sqrt() + ADAM_EPS
        moved = (point - self._length(t - 1) / (1 - BETA1 ** (t + 1)) * mean / spread).clamp(0, 1)
        change = ADAPTION * self._length(t)
        threshold = (rows["threshold"] + change * (2.0 * seen.success - 1)).clamp(0, 1)
        kept = self.counted.grouped((moved - x).square()).sqrt() >= threshold[:, None]
        moved = moved.where(self.counted.spread(kept, x), x)
        return moved, {"mean": mean, "square": square, "threshold": threshold}

    def _length(self, t: int) -> float:
        """The step after step t; before all of them it is the first one."""
        return self.length if t < 0 else self.length * (0.1 + 0.9 * (1 + math.cos(math.pi * t / self.steps)) / 2)


@catalogued(paper="Cina et al., ICLR 2025", quick="sigma_zero(steps=40)", threats=("l0",), draws=False)
def sigma_zero(
    ball: LpBall,
    *,
    steps: int = 1000,
    length: float = 1.0,
    sigma: float = 1e-3,
    threshold: float = 0.3,
    stop: Stop = "first_success",
) -> SigmaZero:
    """As few changed pixels or features as possible, by gradients of a smooth count.

    Smaller `sigma` counts more sharply; changes below the `threshold`, which adapts, are undone after every step. stop=never
    goes on for the smallest count.
    """
    return SigmaZero(ball, steps, stop, length, sigma, threshold)
