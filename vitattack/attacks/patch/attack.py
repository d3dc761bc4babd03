"""PGD in a patch: any attack of the gradient loop inside one square of each image, at one place or at several in turn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from vitattack.attacks.base import Calibration, Crafted, OneInner, Traits, blank_search
from vitattack.attacks.catalogue import catalogued
from vitattack.attacks.gradient.loop import Gradient
from vitattack.attacks.gradient.starts import Start, Uniform
from vitattack.attacks.gradient.steps import Cosine, Momentum, StepRule
from vitattack.attacks.losses.base import AnyLoss
from vitattack.attacks.losses.plain import Margin
from vitattack.attacks.patch.places import Place, Random
from vitattack.attacks.price import Price, PriceQuery
from vitattack.core.progress import in_stage
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.threats.lp import LpBall
from vitattack.threats.patch import Patch

WHOLE_BOX = LpBall("linf", 1.0)  # stands in for the patches of a batch, which are known once it is attacked


@dataclass(frozen=True)
class InPatch(OneInner):
    """A gradient attack inside the patch of each image; survivors meet it again at the next place.

    Evidence `top` and `left` is the corner of the last patch, in pixels.
    """

    threat: Patch
    place: Place
    inner: Gradient

    @property
    def traits(self) -> Traits:
        return replace(self.inner.traits, plain_only=self.place.reads_attention)

    def prepare(self, victim: Attackable, calibration: Calibration, *, rng: SampleRng) -> InPatch:
        return replace(self, place=self.place.prepare(victim), inner=self.inner.prepare(victim, calibration, rng=rng))

    def price(self, query: PriceQuery) -> Price:
        return self.inner.price(query).times(self.place.count).plus(self.place.price(query))

    def view(self, victim: Attackable) -> Attackable:
        """The model whose gradients the inner attack follows."""
        return victim

    def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        evidence = blank_search(x)
        places, seen = self.place(self.threat, victim, x, y, rng=rng), self.view(victim)
        for passes, spent in (("forwards", places.forwards), ("backwards", places.backwards)):
            evidence[passes] += spent
        corners = torch.zeros_like(evidence["first_fooled"])[:, None].repeat(1, 2)
        result = x.clone()
        active = torch.arange(len(x), device=x.device)
        for number, at in enumerate(in_stage("places", list(places.corners.unbind(1)))):
            if len(active) == 0:
                break
            stream = rng[active].child("place", number)
            inner = self.inner.with_ball(self.threat.at(at[active]))
            crafted = inner(seen, x[active], y[active], rng=stream)
            result[active], corners[active] = crafted.x_adv, at[active]
            for passes in ("forwards", "backwards"):
                evidence[passes][active] += crafted.evidence[passes]
            evidence["margin"][active] = torch.maximum(evidence["margin"][active], crafted.evidence["margin"])
            evidence["zero_grad"][active] |= crafted.evidence["zero_grad"]
            fooled = crafted.evidence["fooled"]
            evidence["fooled"][active] = fooled
            evidence["first_fooled"][active] = crafted.evidence["first_fooled"]
            active = active[~fooled]
        top, left = corners.unbind(1)
        return Crafted(result, {**evidence, "top": top, "left": left})


@catalogued(
    paper="Karmon et al., ICML 2018, after Brown et al., 2017",
    quick="patch_pgd(steps=3)",
    threats=("patch",),
)
def patch_pgd(
    threat: Patch,
    *,
    place: Place = Random(),
    steps: int = 100,
    step: float = 0.1,
    loss: AnyLoss = Margin(),
    start: Start = Uniform(),
    rule: StepRule | None = None,
    stop: Literal["first_success", "never"] = "first_success",
) -> InPatch:
    """PGD inside a patch, anywhere in the box: 100 steps with momentum on the margin, at one random place by default.

    place=at(0, 8) is a given row and column, place=random(5) five random places in turn, place=gradient and place=attention the
    place with the largest gradient or the most attention, place=search the best of 16 places by a few steps at each, and
    place=every(8) all of 8 x 8 places in turn. Steps are shares of the box and fall along half a cosine.
    """
    return InPatch(threat, place, Gradient(WHOLE_BOX, steps, rule or Momentum(step, Cosine()), loss, start, stop))
