"""Optimisers of recipes, such as `adamw(lr=1e-3, decay=0.1)`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from timm.optim.lion import Lion as TimmLion
from torch import nn

from vitattack.core.errors import UsageError
from vitattack.train.optim.parameter_groups import parameter_groups


class OptimiserFactory(Protocol):
    """Builds the optimiser of a model; every parameter group holds its peak learning rate under "peak"."""

    def __call__(self, model: nn.Module) -> torch.optim.Optimizer: ...


def _check(lr: float, decay: float, layers: float) -> None:
    if not (math.isfinite(lr) and lr > 0):
        raise UsageError(f"a learning rate of {lr:g} is not positive: use for example lr=1e-3")
    if lr * (1 + decay) > torch.finfo(torch.float32).max:
        raise UsageError(f"a learning rate of {lr:g} is more than float32 can hold: use for example lr=1e-3")
    if not (math.isfinite(decay) and decay >= 0):
        raise UsageError(f"a weight decay of {decay:g} is negative: use decay=0 for none")
    if not 0 < layers <= 1:
        raise UsageError(f"a layer decay of {layers:g} is not in (0, 1]: layers=1 is none, 0.75 is usual")


def _check_momenta(*values: float) -> None:
    if any(not 0 <= value < 1 for value in values):
        raise UsageError(f"averages of gradients {values} are not in [0, 1): 0.9 is usual")


@dataclass(frozen=True)
class AdamW:
    """Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019."""

    lr: float = 1e-3
    decay: float = 0.1
    layers: float = 1.0
    betas: tuple[float, ...] = (0.9, 0.999)

    def __post_init__(self) -> None:
        _check(self.lr, self.decay, self.layers)
        _check_momenta(*_pair(self.betas))

    def __call__(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            parameter_groups(model, self.lr, self.decay, self.layers), lr=self.lr, betas=_pair(self.betas)
        )


@dataclass(frozen=True)
class Lion:
    """Chen et al., "Symbolic Discovery of Optimization Algorithms", NeurIPS 2023; by timm."""

    lr: float = 1e-4
    decay: float = 0.5
    layers: float = 1.0
    betas: tuple[float, ...] = (0.9, 0.99)

    def __post_init__(self) -> None:
        _check(self.lr, self.decay, self.layers)
        _check_momenta(*_pair(self.betas))

    def __call__(self, model: nn.Module) -> torch.optim.Optimizer:
        optimiser: torch.optim.Optimizer = TimmLion(
            parameter_groups(model, self.lr, self.decay, self.layers), lr=self.lr, betas=_pair(self.betas)
        )
        return optimiser


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent with momentum; decay is added to the gradient."""

    lr: float = 0.1
    decay: float = 1e-4
    momentum: float = 0.9
    nesterov: bool = False
    layers: float = 1.0

    def __post_init__(self) -> None:
        _check(self.lr, self.decay, self.layers)
        _check_momenta(self.momentum)
        if self.nesterov and not self.momentum:
            raise UsageError("nesterov needs a momentum: use momentum=0.9")

    def __call__(self, model: nn.Module) -> torch.optim.Optimizer:
        groups = parameter_groups(model, self.lr, self.decay, self.layers)
        return torch.optim.SGD(groups, lr=self.lr, momentum=self.momentum, nesterov=self.nesterov)


def _pair(betas: tuple[float, ...]) -> tuple[float, float]:
    if len(betas) != 2:
        raise UsageError(f"betas {betas} are no pair: write betas=(0.9, 0.99)")
    return betas[0], betas[1]
