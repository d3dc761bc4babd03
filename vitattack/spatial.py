"""The spatial threat: shifts and rotations of the whole image, black where nothing was (Engstrom et al., ICML 2019)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitattack.errors import UsageError
from vitattack.threat import NOTHING, Evidence

# Two ways of resampling the same transform differ by rounding; pixels are in [0,1].
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Spatial:
    """Every shift of up to `shift` pixels in either direction with every rotation of up to `angle` degrees."""

    shift: float = 16.0
    angle: float = 30.0

    kind = "spatial"

    def __post_init__(self) -> None:
        if not (0 <= self.shift <= 10_000 and 0 <= self.angle <= 180):
            raise UsageError("spatial takes shifts of 0 to 10000 px and angles of 0 to 180 degrees: spatial:16px,30deg")

    def __str__(self) -> str:
        return f"spatial:{self.shift:g}px,{self.angle:g}deg"

    def size(self, x: Tensor, x_adv: Tensor) -> Tensor:
        """(B,) the largest change of a pixel: a transform has no size of its own."""
        return (x_adv - x).flatten(1).abs().amax(1)

    def allows(self, x: Tensor, x_adv: Tensor, evidence: Evidence = NOTHING) -> Tensor:
        """(B,) whether each image is the transform that its evidence names, and that one within range."""
        if not {"tx", "ty", "angle"} <= evidence.keys():
            return (x_adv == x).flatten(1).all(1)
        tx, ty, angle = (evidence[name].to(x.device) for name in ("tx", "ty", "angle"))
        slack = 1 + 1e-6
        inside = (
            (tx.abs() <= self.shift * slack) & (ty.abs() <= self.shift * slack) & (angle.abs() <= self.angle * slack)
        )
        if len(x) == 0:
            return inside
        same = (transform(x, tx, ty, angle) - x_adv).flatten(1).abs().amax(1) <= TOLERANCE  # NaN is not the same
        return inside & same & ((x_adv >= 0) & (x_adv <= 1)).flatten(1).all(1)


def transform(x: Tensor, tx: Tensor, ty: Tensor, angle: Tensor) -> Tensor:
    """(B, C, H, W), three times (B,) -> images rotated about their centre, then shifted; bilinear, black outside."""
    height, width = x.shape[-2:]
    radians = angle.to(x) * (math.pi / 180)
    cos, sin = radians.cos(), radians.sin()
    across, down = max(width - 1, 1), max(height - 1, 1)
    # where each pixel of the result is read, in units of half the image with its corner pixels at -1 and 1
    rows = [
        torch.stack([cos, -sin * down / across, 2 * tx.to(x) / across], 1),
        torch.stack([sin * across / down, cos, 2 * ty.to(x) / down], 1),
    ]
    grid = F.affine_grid(torch.stack(rows, 1), list(x.shape), align_corners=True)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=True).clamp(0, 1)


def parse(text: str) -> Spatial:
    """`16px,30deg`; nothing for the ranges of Bhojanapalli et al., ICCV 2021."""
    if not text:
        return Spatial()
    found = re.fullmatch(r"(\d+(?:\.\d*)?)px,(\d+(?:\.\d*)?)deg", text.strip())
    if not found:
        raise UsageError(f"spatial threat '{text}' is not understood: write spatial or spatial:16px,30deg")
    return Spatial(float(found[1]), float(found[2]))
