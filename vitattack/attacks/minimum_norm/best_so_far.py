"""What an attack that minimises a norm has found so far: the smallest success of each sample, and who may leave."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from vitattack.attacks.base import Crafted, blank_evidence
from vitattack.threats.lp import LpBall

Stop = Literal["first_success", "never"]


class Nearest:
    """Successes of any size count for `distance`; only one inside the budget makes a candidate and a claim.

    Evidence `distance` is the size of the smallest perturbation seen to fool the victim, -1 where there was none. With
    stop="first_success" a sample leaves with the first that the budget allows, which need not be its smallest.
    """

    def __init__(self, ball: LpBall, x: Tensor, stop: Stop) -> None:
        self.ball, self.x, self.stop = ball, x, stop
        self.x_adv = x.clone()
        self.evidence = blank_evidence(x)
        self.distance = torch.full((len(x),), math.inf, dtype=x.dtype, device=x.device)

    def note(self, rows: Tensor, x_adv: Tensor, success: Tensor, t: int) -> Tensor:
        """(B,) whether each of these rows is done with, after step `t` ended at `x_adv`."""
        size = self.ball.size(self.x[rows], x_adv)
        allowed = (size <= self.ball.eps).to(success.device)
        size = size.to(self.distance)
        smaller = success & (size < self.distance[rows])
        self.distance[rows[smaller]] = size[smaller]
        inside = smaller & allowed
        won = rows[inside]
        self.x_adv[won] = x_adv[inside]
        self.evidence["first_fooled"][won[~self.evidence["fooled"][won]]] = t
        self.evidence["fooled"][won] = True
        return self.done[rows]

    @property
    def done(self) -> Tensor:
        """(B,) nothing left to find."""
        return self.evidence["fooled"] & ((self.distance == 0) | (self.stop == "first_success"))

    def crafted(self) -> Crafted:
        distance = torch.where(self.distance.isfinite(), self.distance, -1.0)
        return Crafted(self.x_adv, {**self.evidence, "distance": distance})
