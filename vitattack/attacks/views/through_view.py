"""The inner attack through a view with changed inputs or gradients; the plain victim judges."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from vitattack.attacks.base import (
    Attack,
    Calibration,
    Crafted,
    Traits,
    Wrapper,
    recall_attack,
    refuse_nesting,
    walk_attacks,
)
from vitattack.attacks.expectation import require_loss
from vitattack.attacks.gradient.loop import Gradient
from vitattack.attacks.price import Price, PriceQuery
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.models.gradient_views.changed import Change, Changed
from vitattack.models.victim import Victim


@dataclass(frozen=True)
class ThroughView(Wrapper):
    """Runs the inner attack on the victim behind a change; several in each other share one view.

    The change of an inner attack is applied before that of an outer one: in `si(di(mim))` every scaled copy is of one image
    resized at random.
    """

    inner: Attack
    change: Change
    name: str

    def __post_init__(self) -> None:
        for part in walk_attacks(self.inner):
            if part.traits.sources:
                raise UsageError(
                    f"{self.name} belongs inside transfer: write transfer('MODEL', {self.name}(mim(stop=never)))"
                )
            if not isinstance(part, ThroughView) and not any(each.traits.plain_only for each in part.parts):
                refuse_nesting(part)
            if self.change.follows and not part.parts and not isinstance(part, Gradient):
                raise UsageError(
                    f"{self.name} changes every image in its own way, and needs to know which one is which: put pgd, mim, "
                    "apgd or another gradient attack inside"
                )
            if isinstance(part, ThroughView) and self.change.attention and part.change.attention:
                raise UsageError(f"{self.name} and {part.name} each replace the gradient of attention: use one of them")
        if self.change.copies > 1:
            require_loss(self.inner)

    @property
    def traits(self) -> Traits:
        inner = self.inner.traits
        useful = self.change.learns and inner.calibration == "none"
        return replace(inner, plain_only=True, calibration="useful" if useful else inner.calibration)

    def price(self, query: PriceQuery) -> Price:
        behind = query._replace(
            answers=query.answers * self.change.copies, verdict=max(query.verdict, int(not self.change.exact))
        )
        price = self.inner.price(behind)
        return price.more(0, (self.change.backwards - 1) * price.victim.backwards)

    def prepare(self, victim: Attackable, calibration: Calibration, *, rng: SampleRng) -> ThroughView:
        change = self.change.prepared(_plain(victim, self.name), lambda: calibration()[0])
        return replace(self, change=change, inner=self.inner.prepare(victim, calibration, rng=rng))

    def learned(self) -> Any:
        change, inner = self.change.learned(), self.inner.learned()
        return None if change is None and inner is None else {"change": change, "inner": inner}

    def recall(self, victim: Attackable, content: Any) -> ThroughView:
        change = self.change.recalled(_plain(victim, self.name), content["change"])
        return replace(self, change=change, inner=recall_attack(self.inner, victim, content["inner"]))

    def doubts(self) -> tuple[str, ...]:
        return (*self.change.doubts(), *self.inner.doubts())

    def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        before = victim.changes if isinstance(victim, Changed) else ()
        view = Changed(_plain(victim, self.name), (self.change, *before))
        crafted = self.inner(view, x, y, rng=rng)
        backwards = crafted.evidence["backwards"] * self.change.backwards
        return Crafted(crafted.x_adv, {**crafted.evidence, "backwards": backwards})


def _plain(victim: Attackable, name: str) -> Victim:
    if isinstance(victim, Changed):
        return victim.victim
    if not isinstance(victim, Victim):
        raise UsageError(f"{name} runs on a Victim, not on a view of one: wrap the model first")
    return victim
