"""Targeted runs of one attack towards several wrong classes, in turn or at once."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from vitattack.attacks.base import Attack, Calibration, Crafted, OneInner, Traits, inherited_traits, refuse_nesting
from vitattack.attacks.compose import Stages, price_with_verdict
from vitattack.attacks.losses.base import AnyLoss, mean_answer, wrong_classes
from vitattack.attacks.losses.targeted import Aimed, Targeted, TargetedCrossEntropy, TargetedDLR, TargetedMargin
from vitattack.attacks.price import Price, PriceQuery
from vitattack.core.errors import UsageError
from vitattack.core.progress import in_stage
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.models.victim import frozen

Which = Literal["top", "second", "least", "random"]
Aim = Literal["margin", "dlr", "ce"]
TARGETED_LOSSES: dict[str, type[Targeted]] = {"margin": TargetedMargin, "dlr": TargetedDLR, "ce": TargetedCrossEntropy}


@dataclass(frozen=True)
class Targets(OneInner):
    """Runs `inner` towards `k` wrong classes ranked on the clean image, each run on the survivors of those before.

    A model with fewer classes has fewer targets. Below four classes the margin replaces the targeted DLR loss, which is
    undefined there. With `at_once`, all classes are aimed at in batches of that many copies of images: the same passes on an
    image that nothing fools, in a fraction of the time where images are few.
    """

    inner: Attack
    k: int = 9
    which: Which = "top"
    loss: Aim = "margin"
    classes: int | None = None  # of the victim, known after `prepare`
    at_once: int | None = None

    def __post_init__(self) -> None:
        if self.k < 1:
            raise UsageError(f"targets(k={self.k}) has no target: use at least 1")
        refuse_nesting(self.inner)
        self.inner.with_loss(TARGETED_LOSSES[self.loss]())  # refused by an inner attack without a loss

    @property
    def traits(self) -> Traits:
        inner = inherited_traits(self.parts)  # each target draws its own noise, as in Stages
        near = (self.k > 1 and self.which != "second") or self.inner.traits.near_boundary
        return replace(inner, depth=1 + inner.depth, near_boundary=near)

    def prepare(self, victim: Attackable, calibration: Calibration, *, rng: SampleRng) -> Targets:
        inner = self.inner.prepare(victim, calibration, rng=rng)
        return replace(self, inner=inner, classes=victim.num_classes)

    def price(self, query: PriceQuery) -> Price:
        """Price of a forward to rank the classes and a run towards each target."""
        count = 1 if self.which == "second" else min(self.k, query.classes - 1)
        aimed = self.inner.with_loss(Aimed(TARGETED_LOSSES[self.loss](), {}))
        return price_with_verdict(aimed, query).times(count).more(query.answers)

    def with_loss(self, loss: AnyLoss) -> Targets:
        raise UsageError("targets() sets the loss of its inner attack: choose it there, as in targets(apgd, loss=dlr)")

    def in_chunks(self, size: int) -> Targets:
        return self if self.at_once is None else replace(self, at_once=size)

    def doubts(self) -> tuple[str, ...]:
        doubts = list(self.inner.doubts())
        if self.classes is not None and self.which in ("top", "random", "least") and self.k > self.classes - 1:
            doubts.append(f"{self.k} targets were asked for, a model of {self.classes} classes has {self.classes - 1}")
        if self.classes is not None and self.loss == "dlr" and self.classes < 4:
            doubts.append(
                f"the targeted DLR loss needs 4 classes, the model has {self.classes}: the margin took its place"
            )
        return tuple(doubts)

    def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        ranked = self.ranked(victim, x, y, rng)
        if self.at_once is None or not len(x):
            aimed = [self.towards(victim, column, rng) for column in ranked.unbind(1)]
            crafted = Stages(tuple(aimed), fresh=True, name="target")(victim, x, y, rng=rng)
        else:
            crafted = self._run_copies(victim, x, y, ranked, rng, self.at_once)
        evidence = dict(crafted.evidence)
        evidence["forwards"] = evidence["forwards"] + victim.answers
        return Crafted(crafted.x_adv, evidence)

    def _run_copies(
        self, victim: Attackable, x: Tensor, y: Tensor, ranked: Tensor, rng: SampleRng, size: int
    ) -> Crafted:
        """Run a copy of every image for each class; the copy that came farthest stands for its image."""
        count = ranked.shape[1]
        streams, classes = rng.copies(count), ranked.flatten()
        rows = torch.arange(len(x), device=x.device).repeat_interleave(count)
        parts = []
        for part in in_stage("copies", torch.split(torch.arange(len(rows), device=x.device), size)):
            stream = streams[part]
            aimed = self.towards(victim, classes[part], stream)
            parts.append(aimed(victim, x[rows[part]], y[rows[part]], rng=stream))
        found = {name: torch.cat([part.evidence[name] for part in parts]).view(-1, count) for name in parts[0].evidence}
        best = found["margin"].where(~found["fooled"], math.inf).argmax(1)
        evidence = {name: values.gather(1, best[:, None])[:, 0] for name, values in found.items()}
        for passes in ("forwards", "backwards"):
            evidence[passes] = found[passes].sum(1)
        evidence["zero_grad"] = found["zero_grad"].any(1)
        candidates = torch.cat([part.x_adv for part in parts]).view(len(x), count, *x.shape[1:])
        return Crafted(candidates[torch.arange(len(x), device=x.device), best], evidence)

    def towards(self, victim: Attackable, classes: Tensor, rng: SampleRng) -> Attack:
        """The inner attack towards a class (B,) for each sample."""
        loss = TARGETED_LOSSES["margin" if self.loss == "dlr" and victim.num_classes < 4 else self.loss]()
        return self.inner.with_loss(Aimed(loss, dict(zip(rng.index, classes.tolist(), strict=True))))

    def ranked(self, victim: Attackable, x: Tensor, y: Tensor, rng: SampleRng) -> Tensor:
        """(B, k) target classes, in order."""
        with frozen(victim), torch.no_grad():
            wrong = wrong_classes(mean_answer(victim(x)), y)
        if not wrong.shape[1]:
            raise UsageError("a model of one class has no wrong class to target: use a model with at least two")
        if self.which == "second":
            return wrong[:, :1]
        if self.which == "least":
            wrong = wrong.flip(1)
        elif self.which == "random":
            wrong = wrong.gather(1, rng.child("targets").uniform(wrong.double()).argsort(1))
        return wrong[:, : self.k]
