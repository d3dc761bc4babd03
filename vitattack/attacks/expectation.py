"""Expectation over transformation (EOT) for randomised models: losses and gradients averaged over several forwards."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from vitattack.attacks.base import Attack, Crafted, Traits, Wrapper, refuse_nesting
from vitattack.attacks.compose import Stages
from vitattack.attacks.gradient.targets import Targets
from vitattack.attacks.losses.plain import CrossEntropy
from vitattack.attacks.price import Price, PriceQuery
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.models.victim import Victim
from vitattack.models.views import Averaged


@dataclass(frozen=True)
class Expectation(Wrapper):
    """Runs the inner attack on the mean loss of `answers` forwards; a verdict is one forward of the plain victim."""

    inner: Attack
    answers: int

    def __post_init__(self) -> None:
        refuse_nesting(self.inner)
        require_loss(self.inner)
        if not 1 <= self.answers <= 1000:
            raise UsageError(f"eot averages over 1 to 1000 forwards, not {self.answers}")

    @property
    def traits(self) -> Traits:
        return replace(self.inner.traits, plain_only=True)

    def price(self, query: PriceQuery) -> Price:
        return self.inner.price(query.through_view(self.answers))

    def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        if not isinstance(victim, Victim):
            raise UsageError("eot runs on a Victim, not on a view of one: wrap the model first")
        return self.inner(Averaged(victim, self.answers), x, y, rng=rng)


def require_loss(attack: Attack) -> None:
    """Refuse attacks without a loss to average, such as fab."""
    if isinstance(attack, Stages):
        for part in attack.attacks:
            require_loss(part)
    elif not isinstance(attack, Targets):  # they have checked their inner attack
        attack.with_loss(CrossEntropy())
