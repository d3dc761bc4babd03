"""Augmentation of a batch in bulk, on the device of the batch.

An augmentation is a callable `(x, y, rng) -> (x, y)`: it is given what the stream gave (bytes or floats) or what the one
before it made, draws from `rng.child(NAME)`, and may turn class numbers into shares of classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from vitattack.core.errors import UsageError
from vitattack.core.registry import Registry
from vitattack.train.data.batch import Batch, BatchRng, as_float

LARGEST = 4096


class Augment(Protocol):
    def __call__(self, x: Tensor, y: Tensor, rng: BatchRng) -> tuple[Tensor, Tensor]: ...


AUGMENTS: Registry[type[Augment]] = Registry("augmentation", entry_point_group="vitattack.augmentations")
for _name, _class in (("mixup", "MixUp"), ("randaugment", "RandAugment")):
    AUGMENTS.add(_name, f"vitattack.train.data.mixing:{_class}")


def augmented(batch: Batch, augments: Sequence[Augment], rng: BatchRng) -> Batch:
    """A batch as the model is trained on it: floats in [0,1]."""
    x, y = batch
    for count, augment in enumerate(augments):
        x, y = augment(x, y, rng.child("augment", count))
    return Batch(as_float(x), y)


def draws(rng: BatchRng, x: Tensor, count: int) -> Tensor:
    """(B, count) uniform values in double precision, on the device of x."""
    return rng.uniform(torch.empty(len(x), count, dtype=torch.float64)).to(x.device)


@AUGMENTS.register("crop")
@dataclass(frozen=True)
class Crop:
    """A window of the image's own size, cut from the image with `pad` black pixels on each side."""

    pad: int = 4

    def __post_init__(self) -> None:
        if not 1 <= self.pad <= LARGEST:
            raise UsageError(f"crop(pad={self.pad}) is a number of pixels from 1 to {LARGEST}: use pad=4 at 32 px")

    def __call__(self, x: Tensor, y: Tensor, rng: BatchRng) -> tuple[Tensor, Tensor]:
        n, _, height, width = x.shape
        drawn = draws(rng.child("crop"), x, 2)
        top, left = (drawn * (2 * self.pad + 1)).long().unbind(1)
        rows = top[:, None] + torch.arange(height, device=x.device)
        cols = left[:, None] + torch.arange(width, device=x.device)
        padded = F.pad(x, (self.pad,) * 4).permute(0, 2, 3, 1)
        number = torch.arange(n, device=x.device)[:, None, None]
        return padded[number, rows[:, :, None], cols[:, None, :]].permute(0, 3, 1, 2).contiguous(), y


@AUGMENTS.register("flip")
@dataclass(frozen=True)
class Flip:
    """The mirror image, left and right exchanged, of a share of the images."""

    share: float = 0.5

    def __post_init__(self) -> None:
        _check_share(self.share, "flip")

    def __call__(self, x: Tensor, y: Tensor, rng: BatchRng) -> tuple[Tensor, Tensor]:
        flipped = draws(rng.child("flip"), x, 1)[:, 0] < self.share
        return torch.where(flipped[:, None, None, None], x.flip(3), x), y


@AUGMENTS.register("resized_crop")
@dataclass(frozen=True)
class ResizedCrop:
    """A window of a random share of the area and a random aspect, enlarged to the image's size, bilinearly.

    Szegedy et al., "Going deeper with convolutions", CVPR 2015. A window that would stick out is cut to the image.
    """

    scale: tuple[float, ...] = (0.08, 1.0)
    ratio: tuple[float, ...] = (0.75, 4 / 3)
    size: int = 0  # of what comes out; 0 is that of the image

    def __post_init__(self) -> None:
        _check_range(self.scale, "resized_crop(scale=...)")
        _check_range(self.ratio, "resized_crop(ratio=...)")
        if self.scale[1] > 1:
            raise UsageError(f"resized_crop(scale={self.scale}) is more than the image: end it at 1")
        if not 0 <= self.size <= LARGEST:
            raise UsageError(
                f"resized_crop(size={self.size}) is a side in pixels of at most {LARGEST}, 0 for the image's"
            )

    def __call__(self, x: Tensor, y: Tensor, rng: BatchRng) -> tuple[Tensor, Tensor]:
        x = as_float(x)
        height, width = x.shape[-2:]
        area, aspect, down, right = draws(rng.child("resized_crop"), x, 4).unbind(1)
        area = (self.scale[0] + area * (self.scale[1] - self.scale[0])) * height * width
        low, high = map(math.log, self.ratio)
        aspect = (low + aspect * (high - low)).exp()
        # Sides as shares of the image; the grid runs from -1 to 1.
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


@AUGMENTS.register("rotation")
@dataclass(frozen=True)
class Rotation:
    """A rotation about the centre by up to `degrees` either way, bilinearly, with black corners."""

    degrees: float = 2.0

    def __call__(self, x: Tensor, y: Tensor, rng: BatchRng) -> tuple[Tensor, Tensor]:
        x = as_float(x)
        height, width = x.shape[-2:]
        angle = torch.deg2rad(self.degrees * (2 * draws(rng.child("rotation"), x, 1)[:, 0] - 1))
        cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
        theta = torch.stack(
            [
                torch.stack([cos, -sin * height / width, zero], 1),
                torch.stack([sin * width / height, cos, zero], 1),
            ],
            1,
        )
        return _resampled(x, theta.to(x.dtype), (height, width), "zeros"), y


@AUGMENTS.register("jitter")
@dataclass(frozen=True)
class Jitter:
    """Brightness, contrast and saturation, each times a factor from [1 - strength, 1 + strength], in this order.

    Towards black, towards the image's mean grey and towards each pixel's grey: colour jitter without hue.
    """

    strength: float = 0.4

    def __post_init__(self) -> None:
        if not 0 <= self.strength <= 1:
            raise UsageError(f"jitter({self.strength:g}) would turn colours round: use a number from 0 to 1")

    def __call__(self, x: Tensor, y: Tensor, rng: BatchRng) -> tuple[Tensor, Tensor]:
        x = as_float(x)
        factors = 1 + self.strength * (2 * draws(rng.child("jitter"), x, 3) - 1)
        brightness, contrast, saturation = (f[:, None, None, None].to(x.dtype) for f in factors.unbind(1))
        x = (x * brightness).clamp(0, 1)
        x = torch.lerp(_grey(x).mean((1, 2, 3), keepdim=True).expand_as(x), x, contrast.expand_as(x)).clamp(0, 1)
        return torch.lerp(_grey(x).expand_as(x), x, saturation.expand_as(x)).clamp(0, 1), y


@AUGMENTS.register("erasing")
@dataclass(frozen=True)
class Erasing:
    """A rectangle of normal noise around mid grey in a share of the images (Zhong et al., "Random Erasing", AAAI 2020)."""

    share: float = 0.25
    scale: tuple[float, ...] = (0.02, 1 / 3)
    ratio: tuple[float, ...] = (0.3, 10 / 3)
    fill: Literal["noise", "black"] = "noise"

    def __post_init__(self) -> None:
        _check_share(self.share, "erasing")
        _check_range(self.scale, "erasing(scale=...)")
        _check_range(self.ratio, "erasing(ratio=...)")

    def __call__(self, x: Tensor, y: Tensor, rng: BatchRng) -> tuple[Tensor, Tensor]:
        x = as_float(x)
        rng = rng.child("erasing")
        height, width = x.shape[-2:]
        chosen, area, aspect, down, right = draws(rng, x, 5).unbind(1)
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
        # In normalised units the noise is N(0, 1), which is about N(0.5, 0.25) in pixels.
        noise = (0.5 + 0.25 * rng.child("fill").normal(x)).clamp(0, 1)
        return torch.where(inside, noise, x), y


def _between(size: int, first: Tensor, length: Tensor) -> Tensor:
    """(B, size) whether a place is among `length` ones from `first` on."""
    places = torch.arange(size, device=first.device)
    return (places >= first[:, None]) & (places < (first + length)[:, None])


def _resampled(x: Tensor, theta: Tensor, size: tuple[int, int], padding: str) -> Tensor:
    grid = F.affine_grid(theta, [len(x), x.shape[1], *size], align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode=padding, align_corners=False).clamp(0, 1)


def _grey(x: Tensor) -> Tensor:
    """(B, 1, H, W) luma of ITU-R 601; an image without three channels is its own mean."""
    if x.shape[1] != 3:
        return x.mean(1, keepdim=True)
    weights = torch.tensor([0.299, 0.587, 0.114], device=x.device, dtype=x.dtype)
    return (x * weights[:, None, None]).sum(1, keepdim=True)


def _check_share(share: float, name: str) -> None:
    if not 0 <= share <= 1:
        raise UsageError(f"{name}({share:g}) is a share of the images: use a number from 0 to 1")


def _check_range(pair: tuple[float, ...], label: str) -> None:
    if len(pair) != 2 or not 0 < pair[0] <= pair[1]:
        raise UsageError(f"{label} takes two positive numbers in order, such as (0.08, 1), not {pair}")
