"""Contract of objectives, and the part that adversarial ones share: an inner attack that crafts the images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from vitattack.attacks.base import Attack
from vitattack.attacks.gradient.loop import Gradient
from vitattack.attacks.losses.base import Memory, Moment
from vitattack.attacks.losses.plain import CrossEntropy
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.train.objectives.budgets import with_budget


class Objective(ABC):
    """A frozen value. `craft` runs in eval mode with frozen parameters, `loss` in train mode with a graph."""

    @abstractmethod
    def craft(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Tensor:
        """The images to train on, detached."""

    @abstractmethod
    def loss(self, victim: Attackable, x: Tensor, x_adv: Tensor, y: Tensor) -> Tensor:
        """A mean over the batch; y holds class numbers or class probabilities."""

    @abstractmethod
    def limited(self, eps: float) -> Self:
        """The same objective within a smaller budget, its steps as long as before (warm-up of the budget)."""

    @property
    def inner_attack(self) -> Attack | None:
        """The attack that crafts the images, if one does."""
        return None

    @property
    def robust_share(self) -> float:
        """The weight of robust against clean accuracy by which the best epoch is chosen."""
        return 1.0

    def craft_and_loss(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Tensor:
        """`loss` on what `craft` makes, for a victim in train mode whose weights stay the same in between.

        Override it where the two can share work.
        """
        return self.loss(victim, x, self.craft(victim, x, y, rng=rng), y)


@dataclass(frozen=True)
class AdversarialObjective(Objective):
    """An objective on images crafted by an inner attack."""

    inner: Attack

    @property
    def inner_attack(self) -> Attack:
        return self.inner

    def craft(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Tensor:
        attack = self.inner
        if y.is_floating_point():
            if isinstance(attack, Gradient) and isinstance(attack.loss, CrossEntropy):
                attack = replace(attack, loss=MixedLabelLoss(dict(zip(rng.index, y, strict=True))))
            y = y.argmax(1)
        return attack(victim, x, y, rng=rng).x_adv.detach()

    def limited(self, eps: float) -> Self:
        return replace(self, inner=with_budget(self.inner, eps))


@dataclass(frozen=True)
class MixedLabelLoss:
    """Cross-entropy with class probabilities in place of labels, by sample index (MixUp, CutMix)."""

    target: dict[int, Tensor]
    needs_clean = False

    def remember(self, start: Tensor, clean: Tensor | None, y: Tensor, rng: SampleRng) -> Memory:
        return {"target": torch.stack([self.target[i] for i in rng.index])}

    def recall(self, logits: Tensor, y: Tensor, memory: Memory, at: Moment) -> Tensor:
        return F.cross_entropy(logits, memory["target"], reduction="none")


def checked_smoothing(share: float) -> float:
    if not 0 <= share < 1:
        raise UsageError(f"smoothing is a share from 0 to below 1, not {share:g}")
    return share
