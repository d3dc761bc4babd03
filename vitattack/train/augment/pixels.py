"""Augmentations that change pixel values in place: colour jitter and random erasing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vitattack.core.errors import UsageError
from vitattack.train.augment.base import check_range, check_share, uniform_draws
from vitattack.train.data.batch import BatchRng, as_float


@dataclass(frozen=True)
class Jitter:
    """Colour jitter without hue: brightness, contrast and saturation, in this order.

    Each is scaled by a factor from [1 - strength, 1 + strength]: towards black, the image's mean grey, each pixel's grey.
    """

    strength: float = 0.4

    def __post_init__(self) -> None:
        if not 0 <= self.strength <= 1:
            raise UsageError(f"jitter({self.strength:g}) would invert colours: use a number from 0 to 1")

    def __call__(self, x: Tensor, y: Tensor, rng: BatchRng) -> tuple[Tensor, Tensor]:
        x = as_float(x)
        factors = 1 + self.strength * (2 * uniform_draws(rng.child("jitter"), x, 3) - 1)
        brightness, contrast, saturation = (f[:, None, None, None].to(x.dtype) for f in factors.unbind(1))
        x = (x * brightness).clamp(0, 1)
        x = torch.lerp(_grey(x).mean((1, 2, 3), keepdim=True).expand_as(x), x, contrast.expand_as(x)).clamp(0, 1)
        return torch.lerp(_grey(x).expand_as(x), x, saturation.expand_as(x)).clamp(0, 1), y


@dataclass(frozen=True)
class Erasing:
    """Fill a rectangle with normal noise around mid grey in a share of the images (Zhong et al., "Random Erasing", AAAI 2020)."""

    share: float = 0.25
    scale: tuple[float, ...] = (0.02, 1 / 3)
    ratio: tuple[float, ...] = (0.3, 10 / 3)
    fill: Literal["noise", "black"] = "noise"

    def __post_init__(self) -> None:
        check_share(self.share, "erasing")
        check_range(self.scale, "erasing(scale=...)")
        check_range(self.ratio, "erasing(ratio=...)")

    def __call__(self, x: Tensor, y: Tensor, rng: BatchRng) -> tuple[Tensor, Tensor]:
        x = as_float(x)
        rng = rng.child("erasing")
        height, width = x.shape[-2:]
        chosen, area, aspect, down, right = uniform_draws(rng, x, 5).unbind(1)
        area = (self.scale[0] + area * (self.scale[1] - self.scale[0])) * height * width
        low, high = map(math.log, self.ratio)
        aspect = (low + aspect * (high - low)).exp()
        tall = (area * aspect).sqrt().round().clamp(1, height)
        wide = (area / aspect).sqrt().round().clamp(1, width)
        inside = (
            _between(height, (down * (height - tall + 1)).floor(), tall)[:, None, :, None]
            & _between(width, (right * (width - wide + 1)).floor(), wide)[:, None, None, :]
            & (chosen < self.share)[:, None, None, None]
        )
        if self.fill == "black":
            return x.masked_fill(inside, 0), y
        # N(0, 1) in normalised units is about N(0.5, 0.25) in pixels.
        noise = (0.5 + 0.25 * rng.child("fill").normal(x)).clamp(0, 1)
        return torch.where(inside, noise, x), y


def _between(size: int, first: Tensor, length: Tensor) -> Tensor:
    """(B, size): True at the `length` positions from `first` on."""
    places = torch.arange(size, device=first.device)
    return (places >= first[:, None]) & (places < (first + length)[:, None])


def _grey(x: Tensor) -> Tensor:
    """(B, 1, H, W) luma of ITU-R 601; an image without three channels is its own mean."""
    if x.shape[1] != 3:
        return x.mean(1, keepdim=True)
    weights = torch.tensor([0.299, 0.587, 0.114], device=x.device, dtype=x.dtype)
    return (x * weights[:, None, None]).sum(1, keepdim=True)
