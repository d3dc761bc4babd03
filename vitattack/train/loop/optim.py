"""Optimisers and learning rates by name.

An optimiser is named as in `adamw(lr=1e-3, decay=0.1)` and built on a model; a rate is a pure function of the step, so
that a resumed run needs no scheduler state: the loop sets `group["lr"] = group["peak"] * rate(step, total)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from timm.optim import (  # type: ignore[attr-defined]
    param_groups_layer_decay,
    param_groups_weight_decay,
)
from timm.optim.lion import Lion as TimmLion
from torch import nn

from vitattack.core.errors import UsageError
from vitattack.core.registry import Registry
from vitattack.models.attention.baked_scales import SCALES
from vitattack.models.victim import Victim


class Rate(Protocol):
    """The share of the peak learning rate at optimiser step `step` of `total`."""

    def __call__(self, step: int, total: int) -> float: ...


class OptimiserMaker(Protocol):
    """Builds the optimiser of a model; every group has its peak rate under "peak"."""

    def __call__(self, model: nn.Module) -> torch.optim.Optimizer: ...


OPTIMISERS: Registry[Callable[..., OptimiserMaker]] = Registry("optimiser", entry_point_group="vitattack.optimisers")
RATES: Registry[Callable[..., Rate]] = Registry("learning rate", entry_point_group="vitattack.rates")


def groups(model: nn.Module, lr: float, decay: float, layers: float = 1.0) -> list[dict[str, Any]]:
    """Parameter groups with their peak rates; no decay for vectors, biases, attention scales and what the model exempts.

    With `layers` < 1 layer l of L learns at layers ** (L - l) times the rate of the head (BEiT, 2021).
    """
    model = model.model if isinstance(model, Victim) else model  # whose layers timm knows
    exempt = [*getattr(model, "no_weight_decay", lambda: ())(), SCALES]
    if layers < 1:
        found: list[dict[str, Any]] = param_groups_layer_decay(
            model, decay, no_weight_decay_list=exempt, layer_decay=layers
        )
    else:
        found = param_groups_weight_decay(model, decay, no_weight_decay_list=exempt)
    if not found:
        raise UsageError("the model has no parameter that learns: thaw some")
    if layers < 1 and len({group["lr_scale"] for group in found}) == 1:
        raise UsageError("the model does not say which of its parameters lie how deep: use layers=1")
    for group in found:
        group["peak"] = group["lr"] = lr * group.pop("lr_scale", 1.0)
    return found


def _check(lr: float, decay: float, layers: float) -> None:
    if not (math.isfinite(lr) and lr > 0):
        raise UsageError(f"a learning rate of {lr:g} is not positive: use for example lr=1e-3")
    if not (math.isfinite(decay) and decay >= 0):
        raise UsageError(f"a weight decay of {decay:g} is negative: use decay=0 for none")
    if not 0 < layers <= 1:
        raise UsageError(f"a layer decay of {layers:g} is not in (0, 1]: layers=1 is none, 0.75 is usual")


def _check_momenta(*values: float) -> None:
    if any(not 0 <= value < 1 for value in values):
        raise UsageError(f"averages of gradients {values} are not in [0, 1): 0.9 is usual")


@OPTIMISERS.register("adamw")
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
        return torch.optim.AdamW(groups(model, self.lr, self.decay, self.layers), lr=self.lr, betas=_pair(self.betas))


@OPTIMISERS.register("lion")
@dataclass(frozen=True)
class Lion:
    """Chen et al., "Symbolic Discovery of Optimization Algorithms", NeurIPS 2023; the steps are timm's."""

    lr: float = 1e-4
    decay: float = 0.5
    layers: float = 1.0
    betas: tuple[float, ...] = (0.9, 0.99)

    def __post_init__(self) -> None:
        _check(self.lr, self.decay, self.layers)
        _check_momenta(*_pair(self.betas))

    def __call__(self, model: nn.Module) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = TimmLion(
            groups(model, self.lr, self.decay, self.layers), lr=self.lr, betas=_pair(self.betas)
        )
        return made


@OPTIMISERS.register("sgd")
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
        parameters = groups(model, self.lr, self.decay, self.layers)
        return torch.optim.SGD(parameters, lr=self.lr, momentum=self.momentum, nesterov=self.nesterov)


def _pair(betas: tuple[float, ...]) -> tuple[float, float]:
    if len(betas) != 2:
        raise UsageError(f"betas {betas} are no pair: write betas=(0.9, 0.99)")
    return betas[0], betas[1]


def _check_shares(**shares: float) -> None:
    for name, value in shares.items():
        if not 0 <= value <= 1:
            raise UsageError(f"{name} {value:g} is a share of the run or the peak: use a number from 0 to 1")


def _rising(at: float, warmup: float, start: float) -> float | None:
    """The linear first part, None where it is over."""
    return start + (1 - start) * at / warmup if at < warmup else None


@RATES.register("constant")
@dataclass(frozen=True)
class Constant:
    """A linear warm-up from `start` over a share of the run, then the peak."""

    warmup: float = 0.0
    start: float = 0.0

    def __post_init__(self) -> None:
        _check_shares(warmup=self.warmup, start=self.start)

    def __call__(self, step: int, total: int) -> float:
        rising = _rising(step / total, self.warmup, self.start)
        return 1.0 if rising is None else rising


@RATES.register("cosine")
@dataclass(frozen=True)
class Cosine:
    """A linear warm-up from `start`, half a cosine down to `floor`, which the last share `cooldown` keeps."""

    warmup: float = 0.0
    start: float = 0.0
    floor: float = 0.0
    cooldown: float = 0.0

    def __post_init__(self) -> None:
        _check_shares(warmup=self.warmup, start=self.start, floor=self.floor, cooldown=self.cooldown)
        if self.warmup + self.cooldown > 1:
            raise UsageError("warmup and cooldown together are more than the run: lower one of them")

    def __call__(self, step: int, total: int) -> float:
        at = step / total
        rising = _rising(at, self.warmup, self.start)
        if rising is not None:
            return rising
        falling = 1 - self.warmup - self.cooldown
        done = min(1.0, (at - self.warmup) / falling) if falling > 0 else 1.0
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * done))


@RATES.register("one_cycle")
@dataclass(frozen=True)
class OneCycle:
    """Half a cosine up from 1 / div, half a cosine down to 1 / div / final_div, as torch's OneCycleLR (Smith and Topin, 2019)."""

    warmup: float = 0.3
    div: float = 25.0
    final_div: float = 1e4

    def __post_init__(self) -> None:
        _check_shares(warmup=self.warmup)
        if self.div < 1 or self.final_div < 1:
            raise UsageError("div and final_div divide the learning rate: use numbers of 1 or more")

    def __call__(self, step: int, total: int) -> float:
        top, last = self.warmup * total - 1, total - 1  # torch puts the peak one step early
        low, end = 1 / self.div, 1 / self.div / self.final_div
        if step <= top:
            return low + (1 - low) * 0.5 * (1 - math.cos(math.pi * step / top)) if top > 0 else 1.0
        done = min(1.0, (step - top) / (last - top)) if last > top else 1.0
        return end + (1 - end) * 0.5 * (1 + math.cos(math.pi * done))


@RATES.register("drops")
@dataclass(frozen=True)
class Drops:
    """The peak, times `factor` once more from each milestone on; milestones are shares of the run."""

    at: tuple[float, ...] = (0.5, 0.75)
    factor: float = 0.1

    def __post_init__(self) -> None:
        _check_shares(**{f"milestone {number}": value for number, value in enumerate(self.at)})
        if list(self.at) != sorted(self.at):
            raise UsageError(f"milestones {self.at} are out of order: sort them")

    def __call__(self, step: int, total: int) -> float:
        # 35 of 40 epochs is a step, not what rounding leaves of it
        return float(self.factor ** sum(step >= round(share * total) for share in self.at))
