"""The patch threat: any pixels inside one square of the image, and nothing changed outside it (Brown et al., 2017)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Self

from vitattack.core.errors import UsageError
from vitattack.threats.base import NOTHING, Evidence, ThreatKind
from vitattack.threats.lp import LpBall

if TYPE_CHECKING:  # a threat can be read without it
    from torch import Tensor

    from vitattack.core.rng import SampleRng

Unit = Literal["px", "%", "tokens"]
LARGEST_SIDE = 10_000
FORMS = "patch:16px, patch:2% of the image, or patch:1tokens@16px on the grid of a ViT's tokens"


@dataclass(frozen=True)
class Patch:
    """All images that differ from x inside one square only, with any pixels in [0,1] there.

    The square has a side of `amount` pixels, or the share `amount` of the pixels of the image, or it covers `amount` x
    `amount` tokens of a ViT whose tokens are `grid` pixels wide, and lies on their grid.
    """

    amount: float = 16
    unit: Unit = "px"
    grid: int = 1

    kind = "patch"

    def __post_init__(self) -> None:
        whole = self.amount == round(self.amount) and 1 <= self.amount <= LARGEST_SIDE
        fits = 0 < self.amount <= 100 if self.unit == "%" else whole
        on_grid = 1 <= self.grid <= LARGEST_SIDE and (self.grid == 1 or self.unit == "tokens")
        if self.unit not in ("px", "%", "tokens") or not (fits and on_grid):
            raise UsageError(f"{self.amount:g} {self.unit} are no patch: write {FORMS}")

    def __str__(self) -> str:
        amount = f"{self.amount:g}" if float(f"{self.amount:g}") == self.amount else repr(self.amount)
        return f"patch:{amount}{self.unit}" + (f"@{self.grid}px" if self.unit == "tokens" else "")

    def side(self, x: Tensor) -> int:
        """The side of the square in pixels; of a share of the image, that of the nearest square."""
        height, width = x.shape[-2:]
        if self.unit == "%":
            side = max(1, round(math.sqrt(self.amount / 100 * height * width)))
        else:
            side = int(self.amount) * (self.grid if self.unit == "tokens" else 1)
        if side > min(height, width):
            raise UsageError(
                f"a patch of {side} px does not fit into images of {width} x {height} px: use a smaller one"
            )
        return side

    def lines(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The rows, and the columns, in which the upper left corner of the square may lie."""
        import torch

        side = self.side(x)
        down, across = (torch.arange(0, size - side + 1, self.grid, device=x.device) for size in x.shape[-2:])
        return down, across

    def size(self, x: Tensor, x_adv: Tensor) -> Tensor:
        """(B,) changed pixels, in any channel."""
        return (x_adv != x).any(1).flatten(1).count_nonzero(1).double()

    def allows(self, x: Tensor, x_adv: Tensor, evidence: Evidence = NOTHING) -> Tensor:
        """(B,) whether each image is in [0,1] and all changed pixels lie in one square; `evidence` is not needed for that."""
        in_box = ((x_adv >= 0) & (x_adv <= 1)).flatten(1).all(1)  # NaN is in no range
        changed = (x_adv != x).any(1)
        for lines, touched in zip(self.lines(x), (changed.any(2), changed.any(1)), strict=True):
            in_box &= self._within_square(lines, touched, self.side(x))
        return in_box

    @staticmethod
    def _within_square(lines: Tensor, touched: Tensor, side: int) -> Tensor:
        """(L,), (B, size) -> whether all touched rows, or columns, lie in a square that begins at one of the lines."""
        first = touched.int().argmax(1)
        last = touched.shape[1] - 1 - touched.flip(1).int().argmax(1)
        starts, ends = lines <= first[:, None], last[:, None] < lines + side
        return (starts & ends).any(1) | ~touched.any(1)

    def at(self, places: Tensor) -> PatchBall:
        """The images with their squares at these places: (B, 2) rows and columns of upper left corners."""
        return PatchBall("linf", 1.0, self, places)


@dataclass(frozen=True)
class PatchBall(LpBall):
    """The patches of a batch at given places, as a ball that gradient attacks climb in: in linf, with the whole box inside."""

    threat: Patch | None = None
    places: Tensor | None = None  # (B, 2)

    def inside(self, x: Tensor) -> Tensor:
        """(B, 1, H, W) True in the patch of each image."""
        import torch

        assert self.threat is not None and self.places is not None
        side = self.threat.side(x)
        down, across = (torch.arange(size, device=x.device) for size in x.shape[-2:])
        top, left = self.places.to(x.device).unbind(1)
        rows = (down >= top[:, None]) & (down < top[:, None] + side)
        columns = (across >= left[:, None]) & (across < left[:, None] + side)
        return (rows[:, :, None] & columns[:, None, :])[:, None]

    def of_rows(self, rows: Tensor) -> Self:
        return replace(self, places=None if self.places is None else self.places[rows])

    def random(self, x: Tensor, rng: SampleRng) -> Tensor:
        """Uniform pixels in the patch."""
        return self.project(x, rng.uniform(x))

    def ascend(self, grad: Tensor) -> Tensor:
        return grad.sign() * self.inside(grad)

    def project(self, x: Tensor, x_adv: Tensor) -> Tensor:
        """Into the box inside the patch, and the clean image outside."""
        return x_adv.clamp(0, 1).where(self.inside(x), x)


def pasted(x: Tensor, patch: Tensor, places: Tensor) -> Tensor:
    """(B, C, H, W), (B or 1, C, S, S), (B, 2) -> the images with patches at these places, differentiable in the patches."""
    import torch

    side = patch.shape[-1]
    down, across = (torch.arange(size, device=x.device) for size in x.shape[-2:])
    top, left = places.to(x.device).unbind(1)
    row, column = down - top[:, None], across - left[:, None]
    inside = ((row >= 0) & (row < side))[:, :, None] & ((column >= 0) & (column < side))[:, None, :]
    image = torch.arange(len(x), device=x.device) if len(patch) == len(x) else torch.zeros_like(top)
    row, column = row.clamp(0, side - 1), column.clamp(0, side - 1)
    spread = patch.permute(0, 2, 3, 1)[image[:, None, None], row[:, :, None], column[:, None, :]].permute(0, 3, 1, 2)
    return torch.where(inside[:, None], spread, x)


def _parse(text: str) -> Patch:
    """`16px`, `2%` or `1tokens@16px`."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?(?:e[+-]?\d+)?)\s*(?:(px|%)|tokens?\s*@\s*(\d+)\s*px)\s*", text.lower())
    if not found:
        missing = "names no size" if not text.strip() else f"'{text}' is not understood"
        raise UsageError(f"patch threat {missing}: write {FORMS}")
    if found[3]:
        return Patch(float(found[1]), "tokens", int(found[3]))
    return Patch(float(found[1]), "px" if found[2] == "px" else "%")


PATCH = ThreatKind(_parse, "patch:5px")
