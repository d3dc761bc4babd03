"""FMN as published: gradient steps inside a ball that follows the decision boundary (Pintor et al., NeurIPS 2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vitattack.attacks.losses.base import best_wrong, of_class
from vitattack.attacks.minimum_norm.walk import Rows, View, Walk, furthest
from vitattack.core.errors import UsageError
from vitattack.threats.base import per_row
from vitattack.threats.lp import l2_norms
from vitattack.threats.sparse import L0Ball, nearest_in_l1

LAST_GAMMA = 0.001
DUAL = {"linf": 1.0, "l2": 2.0, "l1": math.inf}


@dataclass(frozen=True)
class FMN(Walk):
    """A step of l2 length `alpha` on the margin, falling to a hundredth, then the projection onto a ball of the sample's own.

    Its radius falls after a success, below the smallest one, and rises after a failure; until the first success it reaches to the
    linearised boundary at least. In l0 it begins at one and changes by at least one.
    """

    alpha: float = 1.0
    gamma: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 < self.alpha < math.inf and LAST_GAMMA <= self.gamma < 1):
            raise UsageError(f"fmn needs a positive alpha and a gamma from {LAST_GAMMA:g} to 1")

    def begin(self, x: Tensor, logits: Tensor, y: Tensor) -> Rows:
        return {"radius": x.new_full((len(x),), 1.0 if self.ball.norm == "l0" else math.inf)}

    def objective(self, logits: Tensor, y: Tensor, x: Tensor, point: Tensor, rows: Rows) -> Tensor:
        return best_wrong(logits, y) - of_class(logits, y)

    def step(self, x: Tensor, point: Tensor, rows: Rows, seen: View, t: int) -> tuple[Tensor, Rows]:
        cosine = (1 + math.cos(math.pi * t / self.steps)) / 2
        alpha = self.alpha / 100 + (self.alpha - self.alpha / 100) * cosine
        gamma = LAST_GAMMA + (self.gamma - LAST_GAMMA) * cosine
        radius = self._radius(rows["radius"], seen, gamma).minimum(furthest(self.ball, x))
        moved = point + alpha * seen.grad / per_row(l2_norms(seen.grad).clamp_min(1e-12), x)
        return self._within(x, moved, radius), {"radius": radius}

    def _radius(self, radius: Tensor, seen: View, gamma: float) -> Tensor:
        smaller, larger = radius * (1 - gamma), radius * (1 + gamma)
        if self.ball.norm == "l0":
            smaller = (radius - 1).minimum(smaller.floor()).minimum(seen.best)
            return smaller.where(seen.success, (radius + 1).maximum(larger.floor())).clamp_min(0)
        slope = torch.linalg.vector_norm(seen.grad.flatten(1), DUAL[self.ball.norm], dim=1)
        to_boundary = seen.size + seen.value.abs() / slope.clamp_min(1e-12)
        # Where the box cuts steps off, that distance is too short for ever: the radius grows no less than after a success.
        at_least = larger.where(radius.isfinite(), to_boundary).maximum(to_boundary)
        larger = larger.where(seen.best.isfinite(), at_least)
        return smaller.minimum(seen.best).where(seen.success, larger)

    def _within(self, x: Tensor, moved: Tensor, radius: Tensor) -> Tensor:
        """Into the ball of this radius, in l2 onto its sphere, and into the box."""
        if isinstance(self.ball, L0Ball):
            return self.ball.within_count(x, moved, radius)
        delta = moved - x
        if self.ball.norm == "linf":
            limit = per_row(radius, x)
            return (x + delta.clamp(-limit, limit)).clamp(0, 1)
        if self.ball.norm == "l2":
            return (x + delta * per_row(radius / l2_norms(delta).clamp_min(1e-12), x)).clamp(0, 1)
        flat = delta.flatten(1)
        room = (1 - x.flatten(1)).where(flat > 0, x.flatten(1))
        return (x + nearest_in_l1(flat, room, radius).view_as(x)).clamp(0, 1)
