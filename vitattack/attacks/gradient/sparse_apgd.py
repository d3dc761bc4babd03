"""Step rule of APGD in l1: sparse steps, as sparse as the best point so far asks for (Croce & Hein, ICML 2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitattack.attacks.gradient.steps import State, StepRule
from vitattack.core.errors import UsageError
from vitattack.threats.base import per_row
from vitattack.threats.lp import LpBall

SHRINKING = ((3.0, 0.3), (2.0, 0.3), (1.0, 0.4))  # radius in budgets, and the share of the steps made inside it
FIRST_SHARE = 0.2  # of the features, moved by the first steps from any start inside the budget
DENSER = 1.5  # a step moves 1/1.5 of as many features as the best point has changed
SPARSER_BELOW = 0.95  # ratio of the changed features to those at the last check that counts as progress
SHORTER, SHORTEST = 1.5, 10.0  # divisor of a step without progress, and of the first step at most


class Phase(NamedTuple):
    """Looks of the model from `begin` to `end`, inside a ball of `radius` budgets, with a check every `gap` steps."""

    begin: int
    end: int
    radius: float
    gap: int


@dataclass(frozen=True)
class SparseAutoStep(StepRule):
    """Signs of the largest gradients, `size` radii long in l1; every 4 % of the steps, sparsity and length are reconsidered.

    If the best point has fewer than 95 % of the changes of the last check, the step regains its length and starts from there;
    otherwise it is divided by 1.5, down to a tenth. With `shrinking`, 30 % of the steps are made inside three times the
    budget and 30 % inside twice the budget, each phase from the best point of the one before; a move to a smaller ball is a
    step.
    """

    size: float = 1.0
    shrinking: bool = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.size) and self.size > 0):
            raise UsageError(f"a step of {self.size:g} eps goes nowhere: use a positive multiple of eps, such as 1")

    def phases(self, steps: int) -> tuple[Phase, ...]:
        if not self.shrinking:
            return (Phase(0, steps, 1.0, _gap(steps)),)
        moves = len(SHRINKING) - 1
        counts = [math.ceil(round(share * max(steps - moves, 1), 9)) for _, share in SHRINKING[:-1]]
        found, begin = [], 0
        for (radius, _), count in zip(SHRINKING, [*counts, steps - moves - sum(counts)], strict=True):
            found.append(Phase(begin, begin + count, radius, _gap(count)))
            begin += count + 1
        return tuple(found) if found[-1].end > found[-1].begin else (Phase(0, steps, 1.0, _gap(steps)),)

    def widest(self, ball: LpBall, steps: int) -> LpBall:
        return _wider(ball, self.phases(steps)[0].radius)

    def init(self, x: Tensor, steps: int) -> State:
        rows = x.new_zeros(len(x))
        return {
            "t": 0,
            "phases": self.phases(steps),
            "share": rows + FIRST_SHARE,
            "changed": rows + x[0].numel(),
            "length": rows + self.size,
            "best_loss": rows - torch.inf,
            "best_x": x,
            "best_grad": torch.zeros_like(x),
        }

    def step(
        self, x: Tensor, x_adv: Tensor, grad: Tensor, loss: Tensor, state: State, ball: LpBall
    ) -> tuple[Tensor, State]:
        state = dict(state)
        t, phases = state["t"], state["phases"]
        number = sum(t > phase.end for phase in phases)
        phase = phases[number]
        wide, since = _wider(ball, phase.radius), t - phase.begin
        state["t"] = t + 1
        loss = loss.nan_to_num(-torch.inf, -torch.inf, -torch.inf)
        if since == 0:
            state |= {"best_loss": loss, "best_x": x_adv, "best_grad": grad, "length": torch.full_like(loss, self.size)}
            if self.shrinking:
                changed = changed_features(x, x_adv)
                state |= {"changed": changed, "share": sparser_share(changed, x)}
        else:
            better = loss > state["best_loss"]
            rows = per_row(better, x)
            state["best_loss"] = torch.where(better, loss, state["best_loss"])
            state["best_x"] = torch.where(rows, x_adv, state["best_x"])
            state["best_grad"] = torch.where(rows, grad, state["best_grad"])
            if since % phase.gap == 0:
                x_adv, grad = self._reconsider(x, x_adv, grad, state)
        if t == phase.end and number + 1 < len(phases):
            return _wider(ball, phases[number + 1].radius).project(x, state["best_x"]), state
        return wide.project(x, x_adv + sparse_step(grad, state["share"], state["length"] * wide.eps)), state

    def _reconsider(self, x: Tensor, x_adv: Tensor, grad: Tensor, state: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Set sparsity and length of the steps by the best point, and return samples that became sparser to it."""
        changed = changed_features(x, state["best_x"])
        sparser = changed < SPARSER_BELOW * state["changed"]
        length = torch.where(sparser, torch.full_like(changed, self.size), state["length"] / SHORTER)
        state |= {
            "share": sparser_share(changed, x),
            "changed": changed,
            "length": length.clamp(self.size / SHORTEST, self.size),
        }
        rows = per_row(sparser, x)
        return torch.where(rows, state["best_x"], x_adv), torch.where(rows, state["best_grad"], grad)


def _gap(steps: int) -> int:
    return max(int(0.04 * steps), 1)


def _wider(ball: LpBall, radius: float) -> LpBall:
    return ball if radius == 1 else replace(ball, eps=radius * ball.eps)


def changed_features(x: Tensor, x_adv: Tensor) -> Tensor:
    """(B,) how many features differ from the image by more than the rounding of a projection."""
    return ((x_adv - x).abs() > torch.finfo(x.dtype).eps).flatten(1).sum(1).to(x.dtype)


def sparser_share(changed: Tensor, x: Tensor) -> Tensor:
    """(B,) what share of the features a step moves if the best point has changed so many."""
    return changed / x[0].numel() / DENSER


def sparse_step(grad: Tensor, share: Tensor, length: Tensor) -> Tensor:
    """A step of this length in l1 along the signs of a share of the features, those with the largest gradients; one at least."""
    size = grad.flatten(1).abs()
    smallest = ((1 - share) * size.shape[1]).clamp(0, size.shape[1] - 1).long()
    threshold = size.sort(1).values.gather(1, smallest[:, None])
    signs = grad.sign() * (size >= threshold).view_as(grad)
    return per_row(length / signs.flatten(1).abs().sum(1).clamp_min(1e-10), grad) * signs
