"""Threat balls that only training uses: one smaller than its steps, and one without projection."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from vitattack.attacks.base import Attack, InBall, map_attacks
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.threats.lp import NORMS, LpBall


@dataclass(frozen=True)
class Limited(LpBall):
    """A ball of radius `limit` whose steps are multiples of `eps`, for the warm-up of a budget."""

    limit: float = 0.0

    def random(self, x: Tensor, rng: SampleRng) -> Tensor:
        return LpBall(self.norm, self.limit).random(x, rng)

    def project(self, x: Tensor, x_adv: Tensor) -> Tensor:
        return LpBall(self.norm, self.limit).project(x, x_adv)


@dataclass(frozen=True)
class Unprojected(LpBall):
    """The pixel range alone, with starts within `noise` times the budget (de Jorge et al., NeurIPS 2022)."""

    noise: float = 2.0

    def random(self, x: Tensor, rng: SampleRng) -> Tensor:
        return LpBall(self.norm, self.noise * self.eps).random(x, rng)

    def project(self, x: Tensor, x_adv: Tensor) -> Tensor:
        return LpBall("linf", 1.0).project(x, x_adv)  # as wide as the pixel range


def limited(ball: LpBall, eps: float) -> LpBall:
    """The ball shrunk to `eps` with its steps as long as before; an unprojected one shrinks its steps too."""
    if isinstance(ball, Unprojected):
        return replace(ball, eps=eps)
    if ball.norm not in NORMS:
        raise UsageError(
            f"a budget that warms up is a linf or an l2 ball, not {ball}: train with all of it from the start"
        )
    return Limited(ball.norm, ball.eps, eps)


def with_budget(attack: Attack, eps: float) -> Attack:
    """The attack with every ball inside it limited to `eps`."""
    return map_attacks(
        lambda part: part.with_ball(limited(part.ball, eps)) if isinstance(part, InBall) else part,
        attack,
    )
