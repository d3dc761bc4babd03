"""Plain losses: functions of logits and labels alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from vitattack.attacks.losses.base import best_wrong, of_class, require_classes
from vitattack.core.errors import UsageError


@dataclass(frozen=True)
class CrossEntropy:
    """Cross-entropy of the true class (Goodfellow et al. 2015; Madry et al. 2018)."""

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits, y, reduction="none")


@dataclass(frozen=True)
class Margin:
    """Best wrong logit minus the true one, capped at `kappa` (Carlini & Wagner 2017); no cap by default."""

    kappa: float = math.inf

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        return (best_wrong(logits, y) - of_class(logits, y)).clamp_max(self.kappa)


@dataclass(frozen=True)
class DLR:
    """Difference-of-logits ratio: the margin over the spread of the top three logits (Croce & Hein 2020).

    Invariant to scale and shift, undefined for two classes; with `fallback` the plain margin replaces it there.
    """

    fallback: bool = False

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        if self.fallback and logits.shape[1] < 3:
            return Margin()(logits, y)
        require_classes(logits, 3, "dlr")
        top = logits.topk(3, dim=1).values
        return (best_wrong(logits, y) - of_class(logits, y)) / (top[:, 0] - top[:, 2] + 1e-12)


@dataclass(frozen=True)
class ProbabilityMargin:
    """Margin between softmax probabilities (Xie et al., CVPR 2025, the loss of PMA)."""

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        p = logits.softmax(1)
        return best_wrong(p, y) - of_class(p, y)


@dataclass(frozen=True)
class MIFPE:
    """Cross-entropy of logits divided by the gap of the top two, so that it cannot underflow (Yu & Xu, CVPR 2023)."""

    T: float = 1.0

    def __post_init__(self) -> None:
        if self.T <= 0:
            raise UsageError("mifpe needs a positive T")

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        require_classes(logits, 2, "mifpe")
        top = logits.detach().topk(2, dim=1).values
        gap = (top[:, :1] - top[:, 1:]).clamp_min(1e-12)
        return F.cross_entropy(self.T * logits / gap, y, reduction="none")
