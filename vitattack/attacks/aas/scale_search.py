"""Sets of attention scales: the search protocol, and searches that take scales as given.

The search by gradient ascent is in `climb`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.attention.attention_map import AttentionMap
from vitattack.models.victim import Victim

Per = Literal["layer", "head"]


class ScaleSet(NamedTuple):
    """A set of scales, with the distances and the mean gradient size over the steps that led to it."""

    scales: Tensor  # (L,) or (L, H)
    distances: tuple[float, ...] = ()
    gradient: float = 0.0


class ScaleSearch(Protocol):
    """Search for sets of scales on calibration images."""

    @property
    def per(self) -> Per: ...

    @property
    def candidates(self) -> int:
        """Number of sets of scales returned."""

    @property
    def learns(self) -> bool:
        """Whether the result depends on calibration images."""
        return False

    @property
    def images(self) -> int:
        """Number of calibration images read by the search."""
        return 0

    def __call__(
        self, victim: Victim, layers: AttentionMap, x: Tensor, y: Tensor, *, rng: SampleRng
    ) -> list[ScaleSet]: ...


def shape_of(layers: AttentionMap, per: Per) -> tuple[int, ...]:
    """Shape of the scales of a model."""
    return (len(layers),) if per == "layer" else (len(layers), max(layer.heads for layer in layers.layers))


def ones_outside(scales: Tensor, blocks: tuple[int, ...] | None) -> Tensor:
    """Set scales outside the chosen layers to one."""
    if blocks is None:
        return scales
    wrong = [b for b in blocks if not 0 <= b < len(scales)]
    if wrong:
        raise UsageError(f"block {wrong[0]} of a model with {len(scales)} attention layers: use 0 to {len(scales) - 1}")
    keep = torch.zeros(len(scales), dtype=torch.bool, device=scales.device)
    keep[list(blocks)] = True
    return torch.where(keep.view(-1, *[1] * (scales.dim() - 1)), scales, torch.ones_like(scales))


@dataclass(frozen=True)
class UniformScales(ScaleSearch):
    """The same factor in every layer, one set per value."""

    values: tuple[float, ...]
    blocks: tuple[int, ...] | None = None
    per: Per = "layer"

    @property
    def learns(self) -> bool:
        return len(self.values) > 1

    @property
    def candidates(self) -> int:
        return len(self.values)

    def __post_init__(self) -> None:
        if not self.values or any(not (math.isfinite(v) and v > 0) for v in self.values):
            raise UsageError(f"scales {self.values} are not positive numbers: use for example 0.5")

    def __call__(self, victim: Victim, layers: AttentionMap, x: Tensor, y: Tensor, *, rng: SampleRng) -> list[ScaleSet]:
        return [
            ScaleSet(ones_outside(torch.full(shape_of(layers, self.per), v, device=x.device), self.blocks))
            for v in self.values
        ]


@dataclass(frozen=True)
class GivenScales(ScaleSearch):
    """Scales of an earlier run, one set per row."""

    values: tuple[tuple[float, ...], ...]
    per: Per = "layer"

    @property
    def candidates(self) -> int:
        return len(self.values)

    def __post_init__(self) -> None:
        if not self.values or any(not (math.isfinite(v) and v > 0) for row in self.values for v in row):
            raise UsageError("given scales must be positive numbers, at least one set of them")

    def __call__(self, victim: Victim, layers: AttentionMap, x: Tensor, y: Tensor, *, rng: SampleRng) -> list[ScaleSet]:
        for row in self.values:
            if len(row) not in (len(layers), len(layers) + 1):  # one more for the logits
                raise UsageError(f"{len(row)} scales for the {len(layers)} attention layers of '{victim.name}'")
        return [ScaleSet(torch.tensor(row, device=x.device)) for row in self.values]
