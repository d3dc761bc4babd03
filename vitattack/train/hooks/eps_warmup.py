"""Warm-up of the attack budget."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from vitattack.core.errors import UsageError
from vitattack.train.hooks.base import Hook, RunState
from vitattack.train.objectives.base import Objective


@dataclass
class EpsWarmup(Hook):
    """Grow the budget from zero over the first epochs; steps keep their length (Debenedetti et al., SaTML 2023).

    Epoch e < `epochs` gets eps * (e - zero) / epochs, the first `zero` epochs get none; `sine` bends the ramp.
    """

    epochs: int = 10
    zero: int = 0
    shape: Literal["linear", "sine"] = "linear"

    def __post_init__(self) -> None:
        if self.epochs < 1 or not 0 <= self.zero < self.epochs:
            raise UsageError("eps_warmup takes at least 1 epoch, and fewer epochs at zero than that: eps_warmup(10)")

    def eps(self, final: float, epoch: int) -> float:
        if epoch >= self.epochs:
            return final
        share = max(0, epoch - self.zero) / self.epochs
        return final * (share if self.shape == "linear" else math.sin(math.pi / 2 * share))

    def objective(self, objective: Objective, run: RunState) -> Objective:
        run.numbers["eps"] = eps = self.eps(run.eps, run.epoch)
        return objective if eps == run.eps else objective.limited(eps)
