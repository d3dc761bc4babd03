"""The loop of attacks that walk towards the smallest perturbation, one forward and one backward a step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from vitattack.attacks.base import Crafted, InBall, Traits
from vitattack.attacks.losses.base import AnyLoss, fools
from vitattack.attacks.minimum_norm.best_so_far import BestSoFar, Stop
from vitattack.attacks.price import Price, PriceQuery
from vitattack.core.errors import UsageError
from vitattack.core.progress import in_stage
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.models.victim import frozen
from vitattack.threats.lp import LpBall

Rows = Mapping[str, Tensor]  # tensors of one row per sample that is still walking


class View(NamedTuple):
    """What a step sees at its point: whether it fools the victim, the objective and its gradient, and how far it is.

    `best` is the size of the smallest success so far, inf without one.
    """

    success: Tensor
    value: Tensor
    grad: Tensor
    size: Tensor
    best: Tensor


@dataclass(frozen=True)
class Walk(InBall):
    """Looks at a point, then steps to the next. T steps are T forwards and T - 1 backwards.

    With stop="first_success" a sample leaves with its first success within the budget; stop="never" walks on for the smallest.
    """

    ball: LpBall
    steps: int
    stop: Stop = "first_success"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise UsageError(f"{self.name} needs at least 1 step")

    @property
    def name(self) -> str:
        return type(self).__name__.lower()

    @property
    def traits(self) -> Traits:
        return Traits(near_boundary=True)

    def price(self, query: PriceQuery) -> Price:
        return Price().more(self.steps * query.look, self.steps - 1)

    def without_early_stop(self) -> Self:
        return replace(self, stop="never")

    def with_loss(self, loss: AnyLoss) -> Self:
        raise UsageError(f"{self.name} has an objective of its own and no loss to replace: use pgd(loss=...)")

    def begin(self, x: Tensor, logits: Tensor, y: Tensor) -> Rows:
        """What is remembered of each sample besides its image and its point; `logits` are those of the image."""
        return {}

    @abstractmethod
    def objective(self, logits: Tensor, y: Tensor, x: Tensor, point: Tensor, rows: Rows) -> Tensor:
        """(B,) what the steps make larger."""

    @abstractmethod
    def step(self, x: Tensor, point: Tensor, rows: Rows, seen: View, t: int) -> tuple[Tensor, Rows]:
        """The next point, inside the box, and what is remembered then."""

    @torch.enable_grad()  # callers may sit in no_grad
    def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        best = BestSoFar(self.ball, x, self.stop)
        active, point = torch.arange(len(x), device=x.device), x
        rows: Rows = {}
        with frozen(victim):
            for t in in_stage("steps", range(self.steps)):
                point = point.detach().requires_grad_()
                logits = victim(point)
                best.evidence["forwards"][active] += victim.look
                with torch.no_grad():
                    success = fools(victim, point.detach(), victim.verdict(point, logits), y[active])
                    keep = ~best.note(active, point.detach(), success, t)
                if t == self.steps - 1 or not bool(keep.any()):
                    break
                if t == 0:
                    rows = self.begin(x, logits.detach(), y)
                value = self.objective(logits, y[active], x[active], point, rows)
                (grad,) = torch.autograd.grad(value[keep].sum(), point)
                best.evidence["backwards"][active] += 1  # the pass covers the whole batch
                rows = {name: values[keep] for name, values in rows.items()}
                active, point, success = active[keep], point.detach()[keep], success[keep]
                size = self.ball.size(x[active], point).to(point)
                grad = grad[keep].nan_to_num(0.0, 0.0, 0.0)
                seen = View(success, value.detach()[keep], grad, size, best.distance[active])
                point, rows = self.step(x[active], point, rows, seen, t)
        return best.crafted()


def furthest(ball: LpBall, x: Tensor) -> Tensor:
    """(B,) the size of the largest perturbation that the box has room for."""
    return ball.size(x, (x < 0.5).to(x)).to(x)
