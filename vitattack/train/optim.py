"""Optimisers and learning rates by name.

An optimiser is named as in `adamw(lr=1e-3, decay=0.1)` and built on a model; a rate is a pure function of the step, so
that a resumed run needs no scheduler state: the loop sets `group["lr"] = group["peak"] * rate(step, total)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from vitattack.registry import Registry


class Rate(Protocol):
    """The share of the peak learning rate at optimiser step `step` of `total`."""

    def __call__(self, step: int, total: int) -> float: ...


class OptimiserMaker(Protocol):
    """Builds the optimiser of a model; every group has its peak rate under "peak"."""

    def __call__(self, model: nn.Module) -> torch.optim.Optimizer: ...


OPTIMISERS: Registry[Callable[..., OptimiserMaker]] = Registry("optimiser", entry_point_group="vitattack.optimisers")
RATES: Registry[Callable[..., Rate]] = Registry("learning rate", entry_point_group="vitattack.rates")


@OPTIMISERS.register("adamw")
@dataclass(frozen=True)
class AdamW:
    """AdamW; decay is for tensors of two dimensions and more."""

    lr: float = 1e-3
    decay: float = 0.1

    def __call__(self, model: nn.Module) -> torch.optim.Optimizer:
        decayed = [p for p in model.parameters() if p.requires_grad and p.ndim > 1]
        plain = [p for p in model.parameters() if p.requires_grad and p.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": self.decay}, {"params": plain, "weight_decay": 0.0}]
        optimiser = torch.optim.AdamW(groups, lr=self.lr)
        for group in optimiser.param_groups:
            group["peak"] = group["lr"]
        return optimiser


@RATES.register("constant")
@dataclass(frozen=True)
class Constant:
    """The peak rate throughout."""

    def __call__(self, step: int, total: int) -> float:
        return 1.0
