"""What training minimises, and on which images: `standard`, `fgsm`, `pgd_at`, `trades`, `mart`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self

import torch.nn.functional as F
from torch import Tensor, nn

from vitattack.registry import Registry
from vitattack.rng import SampleRng
from vitattack.threat import LpBall


class Objective(Protocol):
    """A frozen value. `craft` runs in eval mode with frozen parameters, `loss` in train mode with a graph."""

    def craft(self, victim: nn.Module, x: Tensor, y: Tensor, *, rng: SampleRng) -> Tensor:
        """The images to train on, detached."""

    def loss(self, victim: nn.Module, x: Tensor, x_adv: Tensor, y: Tensor) -> Tensor:
        """A mean over the batch; y holds class numbers or shares of classes."""

    def limited(self, eps: float) -> Self:
        """The same objective against a smaller budget, its steps as long as before (warm-up of the budget)."""


OBJECTIVES: Registry[Callable[..., Objective]] = Registry("objective", entry_point_group="vitattack.objectives")


@dataclass(frozen=True)
class Standard:
    """Cross-entropy on the images as they are."""

    smoothing: float = 0.0

    def craft(self, victim: nn.Module, x: Tensor, y: Tensor, *, rng: SampleRng) -> Tensor:
        return x

    def loss(self, victim: nn.Module, x: Tensor, x_adv: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(victim(x), y, label_smoothing=self.smoothing)

    def limited(self, eps: float) -> Self:
        return self


@OBJECTIVES.register("standard")
def standard(ball: LpBall, *, smoothing: float = 0.0) -> Standard:
    """Cross-entropy on the images as they are, with label smoothing if asked."""
    return Standard(smoothing)
