"""The spatial threat: shifts and rotations of the whole image, black where nothing was (Engstrom et al., ICML 2019).

A transform (tx, ty, angle) shows at pixel p of the result what the image has at R(angle) p + (tx, ty), in pixels from the
centre: rotated about the centre, then shifted in the frame of the image. So tx = 3 shows what was 3 px further right.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from vitattack.core.errors import UsageError
from vitattack.threats.base import NOTHING, Evidence, ThreatKind, per_row

if TYPE_CHECKING:  # a threat can be read without it
    from torch import Tensor

# A candidate may miss the transform that its evidence names by rounding; pixels are in [0,1].
TOLERANCE = 1e-5
NAMES = ("tx", "ty", "angle")
_NUMBER = r"\s*(\d+(?:\.\d*)?(?:e[+-]?\d+)?)\s*"


@dataclass(frozen=True)
class Spatial:
    """Every shift of up to `shift` in either direction with every rotation of up to `angle` degrees.

    The shift is in pixels of the model's input, or in percent of its width and height: 16 px at 384 px are 4.1667 %.
    """

    shift: float = 16.0
    angle: float = 30.0
    unit: Literal["px", "%"] = "px"

    kind = "spatial"

    def __post_init__(self) -> None:
        most = 10_000 if self.unit == "px" else 100
        if self.unit not in ("px", "%") or not (0 <= self.shift <= most and 0 <= self.angle <= 180):
            raise UsageError(
                "spatial takes shifts of 0 to 10000 px or 0 to 100 % and angles of 0 to 180 degrees: spatial:16px,30deg"
            )

    def __str__(self) -> str:
        return f"spatial:{_text(self.shift)}{self.unit},{_text(self.angle)}deg"

    def reach(self, x: Tensor) -> tuple[float, float]:
        """The largest shift of these images in pixels, across and down."""
        height, width = x.shape[-2:]
        return (self.shift, self.shift) if self.unit == "px" else (self.shift / 100 * width, self.shift / 100 * height)

    def size(self, x: Tensor, x_adv: Tensor) -> Tensor:
        """(B,) the largest change of a pixel: a transform has no size of its own."""
        return (x_adv - x).flatten(1).abs().amax(1)

    def allows(self, x: Tensor, x_adv: Tensor, evidence: Evidence = NOTHING) -> Tensor:
        """(B,) whether each image is the transform that its evidence names, and that one within range."""
        import torch

        if not set(NAMES) <= evidence.keys():
            return (x_adv == x).flatten(1).all(1)
        named = [evidence[name].to(x) for name in NAMES]
        if any(values.shape != x.shape[:1] for values in named):
            return torch.zeros(len(x), dtype=torch.bool, device=x.device)
        inside = torch.ones(len(x), dtype=torch.bool, device=x.device)
        for values, most in zip(named, (*self.reach(x), self.angle), strict=True):
            inside &= values.abs() <= most * (1 + 1e-6)  # NaN is in no range
        tx, ty, angle = (values.where(inside, 0) for values in named)
        same = (transform(x, tx, ty, angle) - x_adv).flatten(1).abs().amax(1) <= TOLERANCE
        return inside & same & ((x_adv >= 0) & (x_adv <= 1)).flatten(1).all(1)


def transform(x: Tensor, tx: Tensor, ty: Tensor, angle: Tensor) -> Tensor:
    """(B, C, H, W), three times (B,) -> each image under its own transform; bilinear, black outside."""
    return _read(x, tx, ty, angle) if len(x) else x.clone()


def transforms(x: Tensor, tx: Tensor, ty: Tensor, angle: Tensor) -> Tensor:
    """(B, C, H, W), three times (T,) -> (T, B, C, H, W): all images under each transform.

    They share the places to read, with the images folded into channels: the same pixels as `transform`, in less time.
    """
    if len(x) == 0 or len(tx) == 0:
        return x.new_zeros(len(tx), *x.shape)
    folded = x.reshape(1, -1, *x.shape[-2:]).expand(len(tx), -1, -1, -1)
    return _read(folded, tx, ty, angle).view(len(tx), *x.shape)


def _read(x: Tensor, tx: Tensor, ty: Tensor, angle: Tensor) -> Tensor:
    import torch
    from torch.nn import functional as F

    grid = _places(x, tx, ty, angle)
    moved = F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=True).clamp_(0, 1)
    # resampling at one's own place costs a rounding; what is not moved stays what it is
    still = ((tx == 0) & (ty == 0) & (angle == 0)).to(x.device)
    return torch.where(per_row(still, x), x, moved) if bool(still.any()) else moved


def _places(x: Tensor, tx: Tensor, ty: Tensor, angle: Tensor) -> Tensor:
    """(T, H, W, 2) where each pixel is read, with the centres of the corner pixels at -1 and 1.

    A sum of a part per column and a part per row, element by element: no place depends on the transforms beside it.
    """
    import torch

    height, width = x.shape[-2:]
    tx, ty, radians = (values.detach().cpu().double()[:, None] for values in (tx, ty, angle * (math.pi / 180)))
    cos, sin = radians.cos(), radians.sin()
    column = torch.arange(width, dtype=torch.float64) - (width - 1) / 2
    row = torch.arange(height, dtype=torch.float64) - (height - 1) / 2
    across, down = 2 / max(width - 1, 1), 2 / max(height - 1, 1)
    grid = torch.empty(len(tx), height, width, 2, dtype=x.dtype, device=x.device)
    for axis, by_column, by_row in (
        (0, (cos * column + tx) * across, -sin * row * across),
        (1, (sin * column + ty) * down, cos * row * down),
    ):
        torch.add(by_column.to(grid)[:, None, :], by_row.to(grid)[:, :, None], out=grid[..., axis])
    return grid


def _text(value: float) -> str:
    """16 rather than 16.0, and no digit less than the number has."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def _parse(text: str) -> Spatial:
    """`16px,30deg` or `4.17%,30deg`; nothing for the ranges of Bhojanapalli et al., ICCV 2021."""
    if not text.strip():
        return Spatial()
    found = re.fullmatch(rf"{_NUMBER}(px|%)\s*,{_NUMBER}deg\s*", text)
    if not found:
        raise UsageError(
            f"spatial threat '{text}' is not understood: write spatial, spatial:16px,30deg or spatial:4.17%,30deg"
        )
    return Spatial(float(found[1]), float(found[3]), "px" if found[2] == "px" else "%")


SPATIAL = ThreatKind(_parse, "spatial", listed=False)
