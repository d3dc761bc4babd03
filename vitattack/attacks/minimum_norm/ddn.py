"""DDN: the direction from the gradient, the norm by whether the last point fooled (Rony et al., CVPR 2019)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from vitattack.attacks.catalogue import catalogued
from vitattack.attacks.minimum_norm.best_so_far import Stop
from vitattack.attacks.minimum_norm.walk import Rows, View, Walk, furthest
from vitattack.core.errors import UsageError
from vitattack.threats.base import per_row
from vitattack.threats.lp import LpBall, l2_norms, unit_l2

LAST_STEP = 0.01  # the first is 1


@dataclass(frozen=True)
class DDN(Walk):
    """A unit gradient step on cross-entropy, shrinking from 1 to 0.01; then the perturbation is set to a norm.

    The norm falls by the share `gamma` where the point fooled the victim and rises by it elsewhere. Without a gradient there is
    no step, where the paper takes a random one.
    """

    gamma: float = 0.05
    start: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 < self.gamma < 1 and 0 < self.start < math.inf):
            raise UsageError("ddn needs a gamma between 0 and 1 and a positive start")

    def begin(self, x: Tensor, logits: Tensor, y: Tensor) -> Rows:
        return {"norm": x.new_full((len(x),), self.start)}

    def objective(self, logits: Tensor, y: Tensor, x: Tensor, point: Tensor, rows: Rows) -> Tensor:
        return F.cross_entropy(logits, y, reduction="none")

    def step(self, x: Tensor, point: Tensor, rows: Rows, seen: View, t: int) -> tuple[Tensor, Rows]:
        length = LAST_STEP + (1 - LAST_STEP) * (1 + math.cos(math.pi * t / self.steps)) / 2
        norm = rows["norm"] * (1 - self.gamma) ** seen.success * (1 + self.gamma) ** ~seen.success
        norm = norm.minimum(furthest(self.ball, x))
        delta = point - x + length * unit_l2(seen.grad)
        delta = delta * per_row(norm / l2_norms(delta).clamp_min(1e-12), x)
        return (x + delta).clamp(0, 1), {"norm": norm}


@catalogued(paper="Rony et al., CVPR 2019", quick="ddn(steps=8)", threats=("l2",), draws=False)
def ddn(
    ball: LpBall, *, steps: int = 100, gamma: float = 0.05, start: float = 1.0, stop: Stop = "first_success"
) -> DDN:
    """A small l2 perturbation in few steps: along the gradient, on a sphere that shrinks after each success.

    `start` is the first norm, `gamma` the share by which it changes. stop=never goes on for the smallest perturbation.
    """
    return DDN(ball, steps, stop, gamma, start)
