"""The gradient loop: FGSM, PGD, MIM, CW, DLR, GAMA, MIFPE and PMA differ only in its exchangeable parts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from vitattack.attacks.base import Crafted, InBall, Traits, blank_search
from vitattack.attacks.gradient.starts import Start, Uniform
from vitattack.attacks.gradient.steps import State, Steepest, StepRule
from vitattack.attacks.losses.base import (
    AnyLoss,
    Memory,
    Moment,
    claim_draws,
    fools,
    logit_margin,
    loss_memory,
    loss_value,
    mean_answer,
    needs_clean,
)
from vitattack.attacks.losses.plain import CrossEntropy
from vitattack.attacks.price import Price, PriceQuery
from vitattack.core.errors import UsageError
from vitattack.core.progress import in_stage
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.models.victim import frozen
from vitattack.threats.lp import LpBall


@dataclass(frozen=True)
class Gradient(InBall):
    """Iterated ascent of a loss inside a ball.

    One forward per step: the logits of an iterate give its verdict, its loss and its gradient, so T steps cost T + 1
    forwards and T backwards. With `stop="first_success"` a fooled sample leaves the batch at once with the iterate that
    fooled the model; with "never" all samples make all steps and return the last iterate unverified, for T forwards.
    """

    ball: LpBall
    steps: int
    rule: StepRule = field(default_factory=Steepest)
    loss: AnyLoss = field(default_factory=CrossEntropy)
    start: Start = field(default_factory=Uniform)
    stop: Literal["first_success", "never"] = "first_success"

    backwards_per_step: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise UsageError(f"{self.steps} steps cannot move an image: use at least 1")

    @property
    def traits(self) -> Traits:
        return Traits(unverified=self.stop == "never", near_boundary=self.stop != "never")

    def price(self, query: PriceQuery) -> Price:
        clean = needs_clean(self.loss)
        looks = self.steps if self.stop == "never" else self.steps + 1
        return Price().more(
            query.answers * (self.start.passes + clean) + query.look * looks,
            query.answers * (self.start.passes + self.steps * self.backwards_per_step),
        )

    def without_early_stop(self) -> Gradient:
        return replace(self, stop="never")

    def with_loss(self, loss: AnyLoss) -> Gradient:
        return replace(self, loss=loss)

    def doubts(self) -> tuple[str, ...]:
        reach = self.rule.reach(self.steps)
        if reach < 1 - 1e-9:
            return (f"{self.steps} steps reach only {reach:.2f} eps: the edge of the budget is out of reach",)
        return ()

    @torch.enable_grad()  # callers may sit in no_grad
    def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        evidence = blank_search(x)
        result = x.clone()
        if len(x) == 0:
            return Crafted(result, evidence)
        with frozen(victim):
            self._run(victim, x, y, rng, result, evidence)
        return Crafted(result, evidence)

    def _run(
        self, victim: Attackable, x: Tensor, y: Tensor, rng: SampleRng, result: Tensor, evidence: dict[str, Tensor]
    ) -> None:
        active = torch.arange(len(x), device=x.device)
        victim.follow(x, rng.child("view"))
        answers = victim.answers  # forwards per query: a view of a random model averages several
        ball = self.ball
        widest = self.rule.widest(ball, self.steps)
        x_adv = self.start(widest, x, victim=victim, rng=rng.child("start"))
        for passes in ("forwards", "backwards"):
            evidence[passes] += self.start.passes * answers
        clean = None
        if needs_clean(self.loss):
            with torch.no_grad():
                clean = mean_answer(victim(x))
            evidence["forwards"] += answers
        memory: Memory = {}
        state: State = self.rule.init(x, self.steps)
        look = victim.look

        for t in in_stage("steps", range(self.steps + 1)):
            last = t == self.steps
            if last and self.stop == "never":
                break
            x_adv = x_adv.detach().requires_grad_(not last)
            with torch.set_grad_enabled(not last):
                logits = victim(x_adv)
            with torch.no_grad():
                plain = victim.verdict(x_adv, logits)
                evidence["forwards"][active] += look + claim_draws(victim, plain, y)
                fooled, margin = fools(victim, x_adv.detach(), plain, y), logit_margin(plain, y)
                if widest != self.ball:
                    inside = self.ball.within(x, x_adv)
                    fooled, margin = fooled & inside, margin.where(inside, evidence["margin"][active])
                evidence["margin"][active] = torch.maximum(evidence["margin"][active], margin)
            newly_fooled = fooled & (evidence["first_fooled"][active] < 0)
            evidence["first_fooled"][active[newly_fooled]] = t

            keep = None  # all samples stay
            if self.stop == "first_success" and bool(fooled.any()):
                leaving = active[fooled]
                result[leaving] = x_adv.detach()[fooled]
                evidence["fooled"][leaving] = True
                keep = ~fooled
                if not bool(keep.any()):
                    return
            if last:
                active, x_adv = (active, x_adv) if keep is None else (active[keep], x_adv[keep])
                break
            if t == 0:
                memory = loss_memory(self.loss, mean_answer(logits.detach()), clean, y, rng.child("loss"))
            evidence["backwards"][active] += (
                answers * self.backwards_per_step
            )  # the pass covers the whole batch, leaving samples included
            if keep is not None:  # leaving samples take no part in the loss: their rows of the gradient are zero
                memory = {name: rows[keep] for name, rows in memory.items()}
                y, x, active, logits = y[keep], x[keep], active[keep], logits[..., keep, :]
            loss = loss_value(self.loss, logits, y, memory, Moment(t, self.steps))
            grad = self.gradient(victim, loss, x_adv, ball)
            if keep is not None:
                grad, x_adv, ball = grad[keep], x_adv[keep], ball.of_rows(keep)
                victim.keep(keep)
                state = {k: v[keep] if isinstance(v, Tensor) else v for k, v in state.items()}
            grad = grad.nan_to_num(0.0, 0.0, 0.0)  # one NaN pixel must not spoil the whole image
            if t == 0:
                evidence["zero_grad"][active] = ~grad.flatten(1).any(1)
            with torch.no_grad():
                x_adv, state = self.rule.step(x, x_adv.detach(), grad, loss.detach(), state, ball)
        result[active] = x_adv.detach()

    def gradient(self, victim: Attackable, loss: Tensor, x_adv: Tensor, ball: LpBall) -> Tensor:
        """(B, C, H, W) what the next step follows, given the loss at x_adv: its gradient."""
        (grad,) = torch.autograd.grad(loss.sum(), x_adv)
        return grad
