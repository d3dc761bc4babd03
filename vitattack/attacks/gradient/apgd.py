"""Step rule of APGD: momentum, and a step size halved where progress stalls (Croce & Hein, ICML 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitattack.attacks.gradient.steps import State, StepRule
from vitattack.core.errors import UsageError
from vitattack.threats.base import per_row
from vitattack.threats.lp import LpBall


def checkpoints(steps: int) -> tuple[int, ...]:
    """Steps after which the step size is reconsidered: gaps of 22 % of the run, each 3 % shorter, at least 6 %."""
    gap, shrink, least = (max(int(share * steps), 1) for share in (0.22, 0.03, 0.06))
    steps_to_check = []
    t = gap
    while t <= steps:
        steps_to_check.append(t)
        gap = max(gap - shrink, least)
        t += gap
    return tuple(steps_to_check)


@dataclass(frozen=True)
class AutoStep(StepRule):
    """Starts with steps of `size` eps; at checkpoints without progress it halves them and returns to the best point.

    A sample makes progress if its loss grew in more than a share `rho` of the steps since the last checkpoint, unless its
    best loss did not improve with an unhalved step. `weight` averages the new point with the last move.
    """

    size: float = 2.0
    rho: float = 0.75
    weight: float = 0.75

    def __post_init__(self) -> None:
        if not (math.isfinite(self.size) and self.size > 0):
            raise UsageError(f"a step of {self.size:g} eps goes nowhere: use a positive multiple of eps, such as 2")
        if not (0 <= self.rho <= 1 and 0 < self.weight <= 1):
            raise UsageError("auto_step takes rho from 0 to 1 and a weight above 0 and at most 1")

    def init(self, x: Tensor, steps: int) -> State:
        rows = x.new_zeros(len(x))
        return {
            "t": 0,
            "checkpoints": checkpoints(steps),
            "size": rows + self.size,
            "before": x,  # the iterate one step back
            "loss": rows,  # the reference implementation compares the first loss with zero, and so do we
            "grown": rows,
            "best_loss": rows - torch.inf,
            "best_x": x,
            "best_grad": torch.zeros_like(x),
            "best_at_check": rows,
            "halved": torch.ones_like(rows, dtype=torch.bool),
        }

    def step(
        self, x: Tensor, x_adv: Tensor, grad: Tensor, loss: Tensor, state: State, ball: LpBall
    ) -> tuple[Tensor, State]:
        state = dict(state)
        t = state["t"]
        loss = loss.nan_to_num(-torch.inf, -torch.inf, -torch.inf)  # else a point with a NaN output would stay the best
        better = loss > state["best_loss"] if t else torch.ones_like(state["halved"])
        rows = per_row(better, x)
        state["best_loss"] = torch.where(better, loss, state["best_loss"])
        state["best_x"] = torch.where(rows, x_adv, state["best_x"])
        state["best_grad"] = torch.where(rows, grad, state["best_grad"])
        if t == 0:
            state |= {"before": x_adv, "best_at_check": loss}
        else:
            state["grown"] = state["grown"] + (loss > state["loss"])
            state["loss"] = loss
            if t in state["checkpoints"]:
                x_adv, grad = self._reconsider(x_adv, grad, state)
        weight = self.weight if t else 1.0
        target = ball.project(x, x_adv + per_row(state["size"], x) * ball.eps * ball.ascend(grad))
        moved = ball.project(x, x_adv + weight * (target - x_adv) + (1 - weight) * (x_adv - state["before"]))
        state |= {"t": t + 1, "before": x_adv}
        return moved, state

    def _reconsider(self, x_adv: Tensor, grad: Tensor, state: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Halve the step of samples without progress and return them to their best points; (points, gradients)."""
        number = state["checkpoints"].index(state["t"])
        window = state["t"] - (state["checkpoints"][number - 1] if number else 0)
        stuck = state["grown"] <= self.rho * window
        stuck |= ~state["halved"] & (state["best_at_check"] >= state["best_loss"])
        state |= {
            "size": torch.where(stuck, state["size"] / 2, state["size"]),
            "grown": torch.zeros_like(state["grown"]),
            "best_at_check": state["best_loss"],
            "halved": stuck,
        }
        rows = per_row(stuck, x_adv)
        return torch.where(rows, state["best_x"], x_adv), torch.where(rows, state["best_grad"], grad)
