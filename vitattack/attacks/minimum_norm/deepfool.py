"""DeepFool: onto the nearest of the linearised boundaries, again and again (Moosavi-Dezfooli et al., CVPR 2016)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitattack.attacks.base import Crafted, InBall, Traits
from vitattack.attacks.catalogue import catalogued
from vitattack.attacks.losses.base import AnyLoss, fools, of_class, wrong_classes
from vitattack.attacks.minimum_norm.best_so_far import BestSoFar
from vitattack.attacks.price import Price, PriceQuery
from vitattack.core.errors import UsageError
from vitattack.core.progress import in_stage
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.models.victim import frozen
from vitattack.threats.base import per_row
from vitattack.threats.lp import LpBall

BEYOND = 1e-4  # added to each distance, as in the released code: a point on the boundary fools nobody


@dataclass(frozen=True)
class DeepFool(InBall):
    """Steps to the nearest linearised boundary to one of the `classes` likeliest at the image, `overshoot` further.

    A sample leaves with its first success, whatever its size: there is no second one. A step is one forward and a
    backward per class.
    """

    ball: LpBall
    steps: int = 50
    classes: int = 10
    overshoot: float = 0.02

    def __post_init__(self) -> None:
        if self.steps < 1 or self.classes < 2 or not self.overshoot >= 0:
            raise UsageError("deepfool needs at least 1 step, 2 classes and an overshoot of 0 or more")

    @property
    def traits(self) -> Traits:
        return Traits(near_boundary=True)

    def price(self, query: PriceQuery) -> Price:
        wrong = min(self.classes, query.classes) - 1
        return Price().more((self.steps + 1) * query.look, self.steps * wrong)

    def with_loss(self, loss: AnyLoss) -> DeepFool:
        raise UsageError("deepfool follows differences of logits and has no loss to replace: use pgd(loss=...)")

    @torch.enable_grad()  # callers may sit in no_grad
    def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        best = BestSoFar(self.ball, x, "never")
        active, point = torch.arange(len(x), device=x.device), x
        goals: Tensor | None = None
        with frozen(victim):
            for t in in_stage("steps", range(self.steps + 1)):
                point = point.detach().requires_grad_()
                logits = victim(point)
                best.evidence["forwards"][active] += victim.look
                with torch.no_grad():
                    success = fools(victim, point.detach(), victim.verdict(point, logits), y[active])
                    best.note(active, point.detach(), success, t)
                if t == self.steps or bool(success.all()):
                    break
                if goals is None:
                    goals = wrong_classes(logits.detach(), y)[:, : self.classes - 1]
                nearest = self._to_boundary(logits, y[active], goals[active], point)
                best.evidence["backwards"][active] += goals.shape[1]
                active, point = (
                    active[~success],
                    (point.detach() + (1 + self.overshoot) * nearest)[~success].clamp(0, 1),
                )
        return best.crafted()

    def _to_boundary(self, logits: Tensor, y: Tensor, goals: Tensor, point: Tensor) -> Tensor:
        """The shortest step, in the ball's norm, onto the linearised boundary to any of the classes."""
        shortest, step = None, torch.zeros_like(point)
        for number in range(goals.shape[1]):
            gap = of_class(logits, goals[:, number]) - of_class(logits, y)
            (slope,) = torch.autograd.grad(gap.sum(), point, retain_graph=number + 1 < goals.shape[1])
            dual = torch.linalg.vector_norm(slope.flatten(1), 1 if self.ball.norm == "linf" else 2, dim=1).clamp_min(
                1e-6
            )
            distance = gap.detach().abs() / dual + BEYOND
            direction = slope.sign() if self.ball.norm == "linf" else slope / per_row(dual, slope)
            closer = torch.ones_like(y, dtype=torch.bool) if shortest is None else distance < shortest
            shortest = distance if shortest is None else distance.minimum(shortest)
            step = torch.where(per_row(closer, step), per_row(distance, step) * direction, step)
        return step


@catalogued(paper="Moosavi-Dezfooli et al., CVPR 2016", quick="deepfool(steps=4)", draws=False)
def deepfool(ball: LpBall, *, steps: int = 50, classes: int = 10, overshoot: float = 0.02) -> DeepFool:
    """The first step over a decision boundary that is linear but for the model: quick and rough minimum norms.

    The nearest boundary to one of the `classes` likeliest classes is crossed by a share `overshoot` beyond.
    """
    return DeepFool(ball, steps, classes, overshoot)
