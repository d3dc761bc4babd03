"""Random noise: the baseline that every attack has to beat."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitattack.attacks.base import Crafted, InBall, blank_evidence
from vitattack.attacks.catalogue import EVERY_LP, catalogued
from vitattack.attacks.gradient.starts import Gauss, Start, Uniform
from vitattack.attacks.losses.base import AnyLoss, claim_draws, fools
from vitattack.attacks.price import Price, PriceQuery
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.models.victim import frozen
from vitattack.threats.lp import LpBall


@dataclass(frozen=True)
class Noise(InBall):
    """Random points of the ball, each tried on the survivors."""

    ball: LpBall
    start: Start
    tries: int = 1

    def __post_init__(self) -> None:
        if self.tries < 1:
            raise UsageError(f"{self.tries} tries show nothing: use at least 1")

    def with_loss(self, loss: AnyLoss) -> Noise:
        raise UsageError("noise has no loss to replace: wrap another attack, such as pgd")

    def price(self, query: PriceQuery) -> Price:
        return Price().more(query.look * self.tries)

    def doubts(self) -> tuple[str, ...]:
        return ("noise is a baseline: it says nothing about an attacker who queries the model",)

    @torch.no_grad()
    def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        evidence = blank_evidence(x)
        result = x.clone()
        active = torch.arange(len(x), device=x.device)
        with frozen(victim):
            for number in range(self.tries):
                if len(active) == 0:
                    break
                stream = rng[active].child("noise", number)
                result[active] = self.start(self.ball, x[active], victim=victim, rng=stream)
                logits = victim(result[active])
                verdict = victim.verdict(result[active], logits)
                fooled = fools(victim, result[active], verdict, y[active])
                evidence["forwards"][active] += victim.look + claim_draws(victim, verdict, y[active])
                evidence["first_fooled"][active[fooled]] = number
                evidence["fooled"][active[fooled]] = True
                active = active[~fooled]
        return Crafted(result, evidence)


@catalogued(paper="baseline", quick="random(tries=3)", threats=EVERY_LP, black_box=True)
def random(ball: LpBall, *, tries: int = 1) -> Noise:
    """Uniform noise: random points of the ball, tried one after the other."""
    return Noise(ball, Uniform(), tries)


@catalogued(paper="baseline", quick="gaussian(tries=3)", black_box=True)
def gaussian(ball: LpBall, *, std: float = 1.0, tries: int = 1) -> Noise:
    """Normal noise with a standard deviation of `std` eps per pixel, projected into the ball."""
    return Noise(ball, Gauss(std * ball.eps if ball.eps else std), tries)
