"""Targeted runs of one attack towards several wrong classes in turn."""

from __future__ import annotations

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
    undefined there.
    """

    inner: Attack
    k: int = 9
    which: Which = "top"
    loss: Aim = "margin"
    classes: int | None = None  # of the victim, known after `prepare`

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
        with frozen(victim), torch.no_grad():
            logits = mean_answer(victim(x))
        targets = self._targets(logits, y, rng)
        loss = TARGETED_LOSSES["margin" if self.loss == "dlr" and logits.shape[1] < 4 else self.loss]()
        aimed = [
            self.inner.with_loss(Aimed(loss, dict(zip(rng.index, column.tolist(), strict=True))))
            for column in targets.unbind(1)
        ]
        if not aimed:
            raise UsageError("a model of one class has no wrong class to target: use a model with at least two")
        crafted = Stages(tuple(aimed), fresh=True, name="target")(victim, x, y, rng=rng)
        evidence = dict(crafted.evidence)
        evidence["forwards"] = evidence["forwards"] + victim.answers
        return Crafted(crafted.x_adv, evidence)

    def _targets(self, logits: Tensor, y: Tensor, rng: SampleRng) -> Tensor:
        """(B, k) target classes, in order."""
        wrong = wrong_classes(logits, y)
        if self.which == "second":
            return wrong[:, :1]
        if self.which == "least":
            wrong = wrong.flip(1)
        elif self.which == "random":
            wrong = wrong.gather(1, rng.child("targets").uniform(wrong.double()).argsort(1))
        return wrong[:, : self.k]
