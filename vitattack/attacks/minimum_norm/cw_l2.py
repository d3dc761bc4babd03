"""CW-L2: the smallest l2 change by Adam on a penalty and a search for its weight (Carlini & Wagner, S&P 2017)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from vitattack.attacks import losses
from vitattack.attacks.base import Crafted, InBall, Traits
from vitattack.attacks.catalogue import catalogued
from vitattack.attacks.losses import AnyLoss
from vitattack.attacks.minimum_norm.best_so_far import Nearest, Stop
from vitattack.attacks.price import Asked, Price
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.models.victim import frozen
from vitattack.threats.lp import LpBall

# The released code keeps this far off the edge of the box, where the tanh has no slope, and calls this no upper bound.
INSIDE, UNBOUNDED = 0.999999, 1e10
BETA1, BETA2, GUARD = 0.9, 0.999, 1e-8  # Adam's memories of the gradient, of its square, and the guard of the quotient


@dataclass(frozen=True)
class CWL2(InBall):
    """Minimises ||x' - x||^2 + c max(z_y - max z_j + kappa, 0) over w with x' = (tanh(w) + 1) / 2, for several c.

    Each sample has its own c: halved between its bounds after a search that fooled the victim, raised after one that did
    not. A search begins at the image with a fresh Adam and ends early for a sample whose objective stands still. T steps
    are T forwards and T - 1 backwards. What was found and who leaves: `Nearest`.
    """

    ball: LpBall
    searches: int = 5
    steps: int = 200
    c: float = 1.0
    lr: float = 0.01
    kappa: float = 0.0
    abort: bool = True
    stop: Stop = "first_success"

    def __post_init__(self) -> None:
        if self.searches < 1 or self.steps < 1:
            raise UsageError("cw_l2 needs at least 1 search of 1 step")
        if not (self.c > 0 and self.lr > 0):
            raise UsageError("cw_l2 needs a positive c and a positive lr")
        if not (self.kappa >= 0 and math.isfinite(self.kappa)):
            raise UsageError("cw_l2 takes a kappa of 0 or more")

    @property
    def traits(self) -> Traits:
        return Traits(near_boundary=True)

    def price(self, asked: Asked) -> Price:
        return Price().more(self.searches * self.steps * asked.look, self.searches * (self.steps - 1))

    def to_the_end(self) -> CWL2:
        return replace(self, stop="never")

    def with_loss(self, loss: AnyLoss) -> CWL2:
        raise UsageError("cw_l2 has a penalty of its own and takes no other loss: use pgd(loss=...)")

    @torch.enable_grad()  # callers may sit in no_grad
    def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        nearest = Nearest(self.ball, x, self.stop)
        low = torch.zeros(len(x), dtype=x.dtype, device=x.device)
        high, c = torch.full_like(low, UNBOUNDED), torch.full_like(low, self.c)
        with frozen(victim):
            for search in range(self.searches):
                active = (~nearest.done).nonzero().flatten()
                if len(active) == 0:
                    break
                if self.searches >= 10 and search == self.searches - 1:
                    c = high.clone()
                worked = self._search(victim, y, c, active, nearest, search * self.steps)
                high = torch.where(worked, torch.minimum(high, c), high)
                low = torch.where(worked, low, torch.maximum(low, c))
                c = torch.where(high < UNBOUNDED / 10, (low + high) / 2, 10 * c)
        return nearest.crafted()

    def _search(
        self, victim: Attackable, y: Tensor, c: Tensor, active: Tensor, nearest: Nearest, before: int
    ) -> Tensor:
        """One search with fixed c, the `before`-th step onwards; (B,) for whom it fooled the victim."""
        x = nearest.x[active]
        origin = torch.atanh((2 * x - 1) * INSIDE)
        rows: dict[str, Tensor] = {
            "active": active,
            "y": y[active],
            "c": c[active],
            "w": origin,
            "clean": (origin.tanh() + 1) / 2,  # measured from here, as released: the pull is exactly zero at the start
            "mean": torch.zeros_like(x),
            "square": torch.zeros_like(x),
            "earlier": torch.full_like(c[active], math.inf),
        }
        worked = torch.zeros_like(nearest.evidence["fooled"])
        for t in range(self.steps):
            w = rows["w"].detach().requires_grad_()
            x_adv = (w.tanh() + 1) / 2
            logits = victim(x_adv)
            nearest.evidence["forwards"][rows["active"]] += victim.look
            with torch.no_grad():
                plain = victim.verdict(x_adv, logits)
                success = losses.is_fooled(plain, rows["y"]) & (self._lead(plain, rows["y"]) >= self.kappa)
            worked[rows["active"]] |= success
            keep = ~nearest.note(rows["active"], x_adv.detach(), success, before + t)
            penalty = (self.kappa - self._lead(logits, rows["y"])).clamp_min(0)
            objective = (x_adv - rows["clean"]).square().flatten(1).sum(1) + rows["c"] * penalty
            if self.abort and t % max(1, self.steps // 10) == 0:
                keep &= ~(objective.detach() > 0.9999 * rows["earlier"])
                rows["earlier"] = objective.detach()
            if t == self.steps - 1 or not bool(keep.any()):
                break
            (grad,) = torch.autograd.grad(objective[keep].sum(), w)
            nearest.evidence["backwards"][rows["active"]] += 1  # the pass runs for the whole batch
            if not bool(keep.all()):
                rows, grad = {name: values[keep] for name, values in rows.items()}, grad[keep]
            self._adam(rows, grad.nan_to_num(0.0, 0.0, 0.0), t + 1)
        return worked

    @staticmethod
    def _lead(logits: Tensor, y: Tensor) -> Tensor:
        return losses.best_wrong(logits, y) - losses.of_class(logits, y)

    def _adam(self, rows: dict[str, Tensor], grad: Tensor, t: int) -> None:
        rows["mean"] = BETA1 * rows["mean"] + (1 - BETA1) * grad
        rows["square"] = BETA2 * rows["square"] + (1 - BETA2) * grad.square()
        length = self.lr * math.sqrt(1 - BETA2**t) / (1 - BETA1**t)
        rows["w"] = rows["w"].detach() - length * rows["mean"] / (rows["square"].sqrt() + GUARD)


# What the paper runs, and what a CPU can afford: searches, steps, first c.
PRESETS = {"default": (5, 200, 1.0), "paper": (9, 10_000, 1e-3)}


@catalogued(
    paper="Carlini & Wagner, S&P 2017",
    quick="cw_l2(searches=2, steps=12)",
    threats=("l2",),
    draws=False,
)
def cw_l2(
    ball: LpBall,
    *,
    searches: int | None = None,
    steps: int | None = None,
    c: float | None = None,
    lr: float = 0.01,
    kappa: float = 0.0,
    abort: bool = True,
    stop: Stop = "first_success",
    preset: Literal["default", "paper"] = "default",
) -> CWL2:
    """The l2 attack of Carlini & Wagner as published: tanh variable, Adam, and a search for the weight of the penalty.

    5 searches of 200 steps from c = 1; preset=paper makes 9 of 10,000 from c = 0.001. `kappa` is by how much a wrong
    class must lead. stop=never minimises to the end, e.g. for the distances of cw_l2(preset=paper, stop=never).
    """
    usual = PRESETS[preset]
    return CWL2(
        ball,
        usual[0] if searches is None else searches,
        usual[1] if steps is None else steps,
        usual[2] if c is None else c,
        lr,
        kappa,
        abort,
        stop,
    )
