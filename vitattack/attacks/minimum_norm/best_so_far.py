"""Smallest success of each sample so far, for attacks that minimise a norm."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from vitattack.attacks.base import Crafted, blank_evidence
from vitattack.threats.lp import LpBall

Stop = Literal["first_success", "never"]


class BestSoFar:
    """Record of the smallest successes. One of any size counts for `distance`, only one within the budget as a claim.

    Evidence `distance` is the size of the smallest perturbation that fooled the victim, inf if none did. With
    stop="first_success" a sample leaves with its first success within the budget, which need not be its smallest.
    """

    def __init__(self, ball: LpBall, x: Tensor, stop: Stop) -> None:
        self.ball, self.x, self.stop = ball, x, stop
        self.x_adv = x.clone()
        self.evidence = blank_evidence(x)
        self.distance = torch.full((len(x),), math.inf, dtype=x.dtype, device=x.device)

    def note(self, rows: Tensor, x_adv: Tensor, success: Tensor, t: int) -> Tensor:
        """Record the points `x_adv` of step `t`; (B,) which of these rows are done."""
        size = self.ball.size(self.x[rows], x_adv)
        allowed = (size <= self.ball.eps).to(success.device)
        size = size.to(self.distance)
        smaller = success & (size < self.distance[rows])
        self.distance[rows[smaller]] = size[smaller]
        within_budget = smaller & allowed
        improved = rows[within_budget]
        self.x_adv[improved] = x_adv[within_budget]
        self.evidence["first_fooled"][improved[~self.evidence["fooled"][improved]]] = t
        self.evidence["fooled"][improved] = True
        return self.done[rows]

    @property
    def done(self) -> Tensor:
        """(B,) samples with nothing left to find."""
        return self.evidence["fooled"] & ((self.distance == 0) | (self.stop == "first_success"))

    def crafted(self) -> Crafted:
        return Crafted(self.x_adv, {**self.evidence, "distance": self.distance})
