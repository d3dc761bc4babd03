"""Targeted losses, which aim at one wrong class per sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitattack.attacks.losses.base import Memory, Moment, of_class, require_classes, wrong_classes
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng


@dataclass(frozen=True)
class Targeted:
    """Targets the `rank`-th most likely wrong class of the clean image; -1 is the least likely."""

    rank: int = 1
    needs_clean = True

    def __post_init__(self) -> None:
        if self.rank == 0:
            raise UsageError("rank 0 is no wrong class: 1 is the runner-up, -1 the least likely class")

    def remember(self, start: Tensor, clean: Tensor | None, y: Tensor, rng: SampleRng) -> Memory:
        assert clean is not None
        wrong = clean.shape[1] - 1
        if abs(self.rank) > wrong:
            raise UsageError(f"rank {self.rank} of {wrong} wrong classes: use 1 to {wrong}, or -1 for the least likely")
        return {"target": wrong_classes(clean, y)[:, self.rank - 1 if self.rank > 0 else self.rank]}

    def recall(self, logits: Tensor, y: Tensor, memory: Memory, at: Moment) -> Tensor:
        return self.towards(logits, y, memory["target"])

    def towards(self, logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
        """(B,) loss for given targets."""
        raise NotImplementedError


@dataclass(frozen=True)
class TargetedCrossEntropy(Targeted):
    """Negative cross-entropy of the target class."""

    def towards(self, logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
        return -F.cross_entropy(logits, target, reduction="none")


@dataclass(frozen=True)
class TargetedMargin(Targeted):
    """Logit of the target class minus that of the true class."""

    def towards(self, logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
        return of_class(logits, target) - of_class(logits, y)


@dataclass(frozen=True)
class TargetedDLR(Targeted):
    """The targeted margin over the spread of the top four logits (Croce & Hein 2020)."""

    def towards(self, logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
        require_classes(logits, 4, "dlr_targeted")
        top = logits.topk(4, dim=1).values
        spread = top[:, 0] - (top[:, 2] + top[:, 3]) / 2 + 1e-12
        return (of_class(logits, target) - of_class(logits, y)) / spread


@dataclass(frozen=True)
class Aimed:
    """A targeted loss with given target classes, by sample index."""

    loss: Targeted
    target: Mapping[int, int]
    needs_clean = False

    def remember(self, start: Tensor, clean: Tensor | None, y: Tensor, rng: SampleRng) -> Memory:
        return {"target": torch.tensor([self.target[i] for i in rng.index], device=y.device)}

    def recall(self, logits: Tensor, y: Tensor, memory: Memory, at: Moment) -> Tensor:
        return self.loss.towards(logits, y, memory["target"])
