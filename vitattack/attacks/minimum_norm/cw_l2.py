"""CW-L2: minimum l2 perturbation by Adam on a penalty, with a search for its weight (Carlini & Wagner, S&P 2017)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from vitattack.attacks.base import Crafted, InBall, Traits
from vitattack.attacks.catalogue import catalogued
from vitattack.attacks.losses.base import AnyLoss, best_wrong, fools, of_class
from vitattack.attacks.minimum_norm.best_so_far import BestSoFar, Stop
from vitattack.attacks.price import Price, PriceQuery
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.models.victim import frozen
from vitattack.threats.lp import LpBall

# As in the released code: pixels shrink by this factor, since the tanh is flat at the edge of the box; no upper bound yet.
INSIDE, UNBOUNDED = 0.999999, 1e10
BETA1, BETA2, ADAM_EPS = 0.9, 0.999, 1e-8


@dataclass(frozen=True)
class CWL2(InBall):
    """Minimises ||x' - x||^2 + c max(z_y - max z_j + kappa, 0) over w with x' = (tanh(w) + 1) / 2, for several c.

    Each sample has its own c, found by bisection: lowered after a search that fooled the victim, raised after one that
    did not. A search starts at the image with a new Adam state and ends early for a sample whose objective stalls.
    T steps are T forwards and T - 1 backwards. `BestSoFar` keeps the successes.
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
            raise UsageError("cw_l2 needs a finite kappa of 0 or more")

    @property
    def traits(self) -> Traits:
        return Traits(near_boundary=True)

    def price(self, query: PriceQuery) -> Price:
        return Price().more(self.searches * self.steps * query.look, self.searches * (self.steps - 1))

    def without_early_stop(self) -> CWL2:
        return replace(self, stop="never")

    def with_loss(self, loss: AnyLoss) -> CWL2:
        raise UsageError("cw_l2 has a penalty of its own and no loss to replace: use pgd(loss=...)")

    @torch.enable_grad()  # callers may sit in no_grad
    def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        best = BestSoFar(self.ball, x, self.stop)
        low = torch.zeros(len(x), dtype=x.dtype, device=x.device)
        high, c = torch.full_like(low, UNBOUNDED), torch.full_like(low, self.c)
        with frozen(victim):
            for search in range(self.searches):
                active = (~best.done).nonzero().flatten()
                if len(active) == 0:
                    break
                if self.searches >= 10 and search == self.searches - 1:
                    c = high.clone()
                succeeded = self._search(victim, y, c, active, best, search * self.steps)
                high = torch.where(succeeded, torch.minimum(high, c), high)
                low = torch.where(succeeded, low, torch.maximum(low, c))
                c = torch.where(high < UNBOUNDED / 10, (low + high) / 2, 10 * c)
        return best.crafted()

    def _search(self, victim: Attackable, y: Tensor, c: Tensor, active: Tensor, best: BestSoFar, before: int) -> Tensor:
        """Minimise with fixed c, counting steps from `before`; (B,) samples on which it fooled the victim."""
        x = best.x[active]
        origin = torch.atanh((2 * x - 1) * INSIDE)
        rows: dict[str, Tensor] = {
            "active": active,
            "y": y[active],
            "c": c[active],
            "w": origin,
            "clean": (origin.tanh() + 1)
            / 2,  # the released code measures from here: the distance starts at exactly zero
            "mean": torch.zeros_like(x),
            "square": torch.zeros_like(x),
            "earlier": torch.full_like(c[active], math.inf),
        }
        succeeded = torch.zeros_like(best.evidence["fooled"])
        for t in range(self.steps):
            w = rows["w"].detach().requires_grad_()
            x_adv = (w.tanh() + 1) / 2
            logits = victim(x_adv)
            best.evidence["forwards"][rows["active"]] += victim.look
            with torch.no_grad():
                plain = victim.verdict(x_adv, logits)
                success = fools(victim, x_adv.detach(), plain, rows["y"]) & (self._lead(plain, rows["y"]) >= self.kappa)
            succeeded[rows["active"]] |= success
            keep = ~best.note(rows["active"], x_adv.detach(), success, before + t)
            penalty = (self.kappa - self._lead(logits, rows["y"])).clamp_min(0)
            objective = (x_adv - rows["clean"]).square().flatten(1).sum(1) + rows["c"] * penalty
            if self.abort and t % max(1, self.steps // 10) == 0:
                keep &= ~(objective.detach() > 0.9999 * rows["earlier"])
                rows["earlier"] = objective.detach()
            if t == self.steps - 1 or not bool(keep.any()):
                break
            (grad,) = torch.autograd.grad(objective[keep].sum(), w)
            best.evidence["backwards"][rows["active"]] += 1  # the pass covers the whole batch
            if not bool(keep.all()):
                rows, grad = {name: values[keep] for name, values in rows.items()}, grad[keep]
            self._adam(rows, grad.nan_to_num(0.0, 0.0, 0.0), t + 1)
        return succeeded

    @staticmethod
    def _lead(logits: Tensor, y: Tensor) -> Tensor:
        return best_wrong(logits, y) - of_class(logits, y)

    def _adam(self, rows: dict[str, Tensor], grad: Tensor, t: int) -> None:
        rows["mean"] = BETA1 * rows["mean"] + (1 - BETA1) * grad
        rows["square"] = BETA2 * rows["square"] + (1 - BETA2) * grad.square()
        length = self.lr * math.sqrt(1 - BETA2**t) / (1 - BETA1**t)
        rows["w"] = rows["w"].detach() - length * rows["mean"] / (rows["square"].sqrt() + ADAM_EPS)


# Searches, steps and first c; the default is affordable on a CPU.
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

    5 searches of 200 steps from c = 1; preset=paper makes 9 of 10,000 from c = 0.001. `kappa` is the lead a wrong class
    must have. stop=never minimises to the end, e.g. for the distances of cw_l2(preset=paper, stop=never).
    """
    preset_searches, preset_steps, preset_c = PRESETS[preset]
    return CWL2(
        ball,
        preset_searches if searches is None else searches,
        preset_steps if steps is None else steps,
        preset_c if c is None else c,
        lr,
        kappa,
        abort,
        stop,
    )
