"""Double-precision gradients: successes beyond those in float32 were hidden by rounding alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from vitattack.attacks.base import Attack, Crafted, InBall, Traits, Wrapper, refuse_nesting
from vitattack.attacks.price import Price, PriceQuery
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.models.victim import Victim
from vitattack.models.views import Double
from vitattack.threats.lp import LpBall


@dataclass(frozen=True)
class DoublePrecision(InBall, Wrapper):
    """Runs the inner attack on the victim in float64; verdicts are those of the float32 victim."""

    ball: LpBall
    inner: Attack

    def __post_init__(self) -> None:
        refuse_nesting(self.inner)

    @property
    def traits(self) -> Traits:
        return replace(self.inner.traits, plain_only=True)

    def price(self, query: PriceQuery) -> Price:
        return self.inner.price(query.through_view())

    def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        if not isinstance(victim, Victim):
            raise UsageError("fp64 runs on a Victim, not on a view of one: wrap the model first")
        crafted = self.inner(Double(victim), x.double(), y, rng=rng)
        # the inner attack projected in float64: rounding to float32 may leave the ball by half a unit in the last place
        x_adv = self.ball.project(x, crafted.x_adv.to(x.dtype))
        return Crafted(x_adv, crafted.evidence)
