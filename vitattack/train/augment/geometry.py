"""Augmentations that move pixels: crop, flip, resized crop, rotation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitattack.core.errors import UsageError
from vitattack.train.augment.base import MAX_PIXELS, check_range, check_share, uniform_draws
from vitattack.train.data.batch import BatchRng, as_float


@dataclass(frozen=True)
class Crop:
    """Crop a window of the image's own size from the image padded with `pad` black pixels on each side."""

    pad: int = 4

    def __post_init__(self) -> None:
        if not 1 <= self.pad <= MAX_PIXELS:
            raise UsageError(f"crop(pad={self.pad}) is a number of pixels from 1 to {MAX_PIXELS}: use pad=4 at 32 px")

    def __call__(self, x: Tensor, y: Tensor, rng: BatchRng) -> tuple[Tensor, Tensor]:
        n, _, height, width = x.shape
        drawn = uniform_draws(rng.child("crop"), x, 2)
        top, left = (drawn * (2 * self.pad + 1)).long().unbind(1)
        rows = top[:, None] + torch.arange(height, device=x.device)
        cols = left[:, None] + torch.arange(width, device=x.device)
        padded = F.pad(x, (self.pad,) * 4).permute(0, 2, 3, 1)
        number = torch.arange(n, device=x.device)[:, None, None]
        return padded[number, rows[:, :, None], cols[:, None, :]].permute(0, 3, 1, 2).contiguous(), y


@dataclass(frozen=True)
class Flip:
    """Mirror a share of the images left to right."""

    share: float = 0.5

    def __post_init__(self) -> None:
        check_share(self.share, "flip")

    def __call__(self, x: Tensor, y: Tensor, rng: BatchRng) -> tuple[Tensor, Tensor]:
        flipped = uniform_draws(rng.child("flip"), x, 1)[:, 0] < self.share
        return torch.where(flipped[:, None, None, None], x.flip(3), x), y


@dataclass(frozen=True)
class ResizedCrop:
    """Crop a window of random area and aspect ratio and resize it bilinearly to the image's size.

    Szegedy et al., "Going deeper with convolutions", CVPR 2015. A window that would exceed the image is clipped to it.
    """

    scale: tuple[float, ...] = (0.08, 1.0)
    ratio: tuple[float, ...] = (0.75, 4 / 3)
    size: int = 0  # of the output; 0 keeps the image's

    def __post_init__(self) -> None:
        check_range(self.scale, "resized_crop(scale=...)")
        check_range(self.ratio, "resized_crop(ratio=...)")
        if self.scale[1] > 1:
            raise UsageError(f"resized_crop(scale={self.scale}) is more than the image: end it at 1")
        if not 0 <= self.size <= MAX_PIXELS:
            raise UsageError(
                f"resized_crop(size={self.size}) is a side in pixels of at most {MAX_PIXELS}, 0 for the image's"
            )

    def __call__(self, x: Tensor, y: Tensor, rng: BatchRng) -> tuple[Tensor, Tensor]:
        x = as_float(x)
        height, width = x.shape[-2:]
        area, aspect, down, right = uniform_draws(rng.child("resized_crop"), x, 4).unbind(1)
        area = (self.scale[0] + area * (self.scale[1] - self.scale[0])) * height * width
        low, high = map(math.log, self.ratio)
        aspect = (low + aspect * (high - low)).exp()
        # Sides as fractions of the image; the sampling grid runs from -1 to 1.
        wide = ((area * aspect).sqrt() / width).clamp(max=1)
        tall = ((area / aspect).sqrt() / height).clamp(max=1)
        zero = torch.zeros_like(wide)
        theta = torch.stack(
            [
                torch.stack([wide, zero, (1 - wide) * (2 * right - 1)], 1),
                torch.stack([zero, tall, (1 - tall) * (2 * down - 1)], 1),
            ],
            1,
        )
        out = (self.size or height, self.size or width)
        return _resampled(x, theta.to(x.dtype), out, "border"), y


@dataclass(frozen=True)
class Rotation:
    """Rotate about the centre by up to `degrees` either way, bilinearly, with black corners."""

    degrees: float = 2.0

    def __call__(self, x: Tensor, y: Tensor, rng: BatchRng) -> tuple[Tensor, Tensor]:
        x = as_float(x)
        height, width = x.shape[-2:]
        angle = torch.deg2rad(self.degrees * (2 * uniform_draws(rng.child("rotation"), x, 1)[:, 0] - 1))
        cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
        theta = torch.stack(
            [
                torch.stack([cos, -sin * height / width, zero], 1),
                torch.stack([sin * width / height, cos, zero], 1),
            ],
            1,
        )
        return _resampled(x, theta.to(x.dtype), (height, width), "zeros"), y


def _resampled(x: Tensor, theta: Tensor, size: tuple[int, int], padding: str) -> Tensor:
    grid = F.affine_grid(theta, [len(x), x.shape[1], *size], align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode=padding, align_corners=False).clamp(0, 1)
