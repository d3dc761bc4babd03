"""l1 and l0 balls, whose projections take the box [0,1] into account: clipping afterwards would waste budget."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from vitattack.core.errors import UsageError
from vitattack.threats.base import ThreatKind, per_row
from vitattack.threats.lp import LpBall, doubled, parsed_eps

if TYPE_CHECKING:
    from torch import Tensor

    from vitattack.core.rng import SampleRng

# (delta, room) of each image, flattened -> the change that remains
Projection = Callable[["Tensor", "Tensor"], "Tensor"]
LARGEST = 1e6  # pixels of no image that is attacked here add up to more
Unit = Literal["px", "features"]


@dataclass(frozen=True)
class L1Ball(LpBall):
    """All images whose changes add up to at most `eps`, and inside [0,1]."""

    norm: Literal["l1"] = "l1"
    eps: float = 12.0

    def __post_init__(self) -> None:
        if self.norm != "l1":
            raise UsageError(f"L1Ball is for l1, not {self.norm}: write l1:12")
        if not (math.isfinite(self.eps) and 0 <= self.eps <= LARGEST):
            raise UsageError(f"eps {self.eps:g} is not an l1 budget for pixels in [0,1] (0 to 1e6): write l1:12")

    def __str__(self) -> str:
        return f"l1:{self.eps:g}" if float(f"{self.eps:g}") == self.eps else f"l1:{self.eps:.17g}"

    def random(self, x: Tensor, rng: SampleRng) -> Tensor:
        """A uniform point of the ball, clipped to the box."""
        import torch

        # shares of one more exponential variable than there are pixels are uniform in the ball
        shares = -torch.log1p(-rng.child("shares").uniform(x))
        rest = -torch.log1p(-rng.child("rest").uniform(x.flatten(1)[:, :1])).flatten()
        whole = (shares.flatten(1).sum(1) + rest).clamp_min(1e-12)
        signs = torch.where(rng.child("sign").uniform(x) < 0.5, -1.0, 1.0).to(x)
        return self.project(x, x + self.eps * signs * shares / per_row(whole, x))

    def ascend(self, grad: Tensor) -> Tensor:
        """A step of one along the largest gradient."""
        flat = grad.flatten(1)
        largest = flat.abs().argmax(1, keepdim=True)
        return grad.new_zeros(flat.shape).scatter_(1, largest, flat.gather(1, largest).sign()).view_as(grad)

    def project(self, x: Tensor, x_adv: Tensor) -> Tensor:
        """The nearest point of ball and box."""
        return _projected(x, x_adv, lambda delta, room: nearest_in_l1(delta, room, delta.new_full((1,), self.eps)))

    def size(self, x: Tensor, x_adv: Tensor) -> Tensor:
        return (doubled(x_adv) - doubled(x)).flatten(1).abs().sum(1)


@dataclass(frozen=True)
class L0Ball(LpBall):
    """All images with at most `eps` pixels changed, in any of their channels; or as many features, one by one."""

    norm: Literal["l0"] = "l0"
    eps: float = 20.0
    unit: Unit = "px"

    def __post_init__(self) -> None:
        if self.norm != "l0" or self.unit not in ("px", "features"):
            raise UsageError(f"an l0 threat counts pixels or features, not {self.norm} {self.unit}: write l0:20px")
        if not (0 <= self.eps <= LARGEST and self.eps == round(self.eps)):
            raise UsageError(f"{self.eps:g} is no number of {self.unit} (whole, 0 to 1e6): write l0:20{self.unit}")

    def __str__(self) -> str:
        return f"l0:{self.eps:.0f}{self.unit}"

    def random(self, x: Tensor, rng: SampleRng) -> Tensor:
        """As many random pixels as may be changed, with uniform values."""
        places = rng.child("place").uniform(x if self.unit == "features" else x[:, :1])
        chosen = _largest(places.flatten(1), places.new_full((1,), self.eps)).view_as(places)
        return self.project(x, x.where(~chosen, rng.child("value").uniform(x)))

    def ascend(self, grad: Tensor) -> Tensor:
        """The signs of the gradient at as many pixels as may be changed, those with the largest gradients."""
        chosen = _largest(self.grouped(grad.abs()), grad.new_full((1,), self.eps))
        return grad.sign() * self.spread(chosen, grad)

    def project(self, x: Tensor, x_adv: Tensor) -> Tensor:
        """The nearest point of ball and box: the changes that would cost most to undo stay, as far as the box lets them."""
        return self.within_count(x, x_adv, x.new_full((1,), self.eps))

    def within_count(self, x: Tensor, x_adv: Tensor, count: Tensor) -> Tensor:
        """The nearest point of the box with `count` changes, one number for each image."""

        def nearest(delta: Tensor, room: Tensor) -> Tensor:
            moved = delta.abs().minimum(room)
            saved = (delta.square() - (delta.abs() - moved).square()).view_as(x)
            chosen = self.spread(_largest(self.grouped(saved), count), x).flatten(1)
            return delta.sign() * moved * chosen

        return _projected(x, x_adv, nearest)

    def size(self, x: Tensor, x_adv: Tensor) -> Tensor:
        return self.grouped((x_adv != x).double().cpu()).count_nonzero(1).double()

    def grouped(self, values: Tensor) -> Tensor:
        """(B, C, H, W) sums over the channels of each pixel, or the features themselves; one row per image."""
        return values.flatten(1) if self.unit == "features" or values.dim() < 3 else values.flatten(2).sum(1)

    def spread(self, chosen: Tensor, like: Tensor) -> Tensor:
        """What was chosen by `grouped`, for every feature."""
        if self.unit == "features" or like.dim() < 3:
            return chosen.view_as(like)
        return chosen.view(len(like), 1, *like.shape[2:]).expand_as(like)


def nearest_in_l1(delta: Tensor, room: Tensor, eps: Tensor) -> Tensor:
    """(N, D), (N, D), (N,) -> the point nearest to each delta whose entries add up to at most eps and fit into their room.

    Every entry shrinks by the same level, to zero at most, and is cut at its room. What remains falls with the level, in
    straight pieces: Newton's method between bounds that close in ends on the piece of the solution, where it is exact.
    """
    import torch

    size = delta.abs()
    level, low, high = torch.zeros_like(size[:, 0]), torch.zeros_like(size[:, 0]), size.amax(1)
    close = 16 * torch.finfo(size.dtype).eps * eps
    enough = size.minimum(room).sum(1) <= eps
    while True:
        left = size - level[:, None]
        total = left.clamp_min(0).minimum(room).sum(1)
        above = total > eps
        low, high = torch.where(above, level, low), torch.where(above, high, level)
        moving = ((left > 0) & (left < room)).sum(1)
        newton = level + (total - eps) / moving.clamp_min(1)
        between = (moving > 0) & (newton > low) & (newton < high)
        following = torch.where(between, newton, (low + high) / 2)
        settled = enough | ((total - eps).abs() <= close) | (following == level) | ~total.isfinite()
        if bool(settled.all()):
            break
        level = torch.where(settled, level, following)
    kept = (size - level[:, None]).clamp_min(0).minimum(room)
    return delta.sign() * torch.where((eps > 0)[:, None], kept, 0.0)


def _projected(x: Tensor, x_adv: Tensor, nearest: Projection) -> Tensor:
    """The image moved by the nearest change to that of x_adv, given how far each pixel can go that way."""
    if len(x) == 0:
        return x_adv.clone()
    delta = (x_adv - x).flatten(1)
    flat = x.flatten(1)
    moved = nearest(delta, (1 - flat).where(delta > 0, flat))
    return (flat + moved).clamp_(0, 1).view_as(x)


def _largest(values: Tensor, count: Tensor) -> Tensor:
    """(N, D), (N,) -> whether each entry is among the `count` largest of its row; the first of equal ones is."""
    import torch

    order = values.argsort(dim=1, descending=True, stable=True)
    first = torch.arange(values.shape[1], device=values.device) < count[:, None]
    return torch.zeros_like(values, dtype=torch.bool).scatter_(1, order, first.expand_as(order))


def _parse_l1(number: str) -> L1Ball:
    if not number:
        raise UsageError("threat 'l1' names no budget: write l1:12")
    return L1Ball("l1", parsed_eps("l1", number, "l1:12"))


def _parse_l0(text: str) -> L0Ball:
    found = re.fullmatch(r"\s*(\d+)\s*(px|features)\s*", text)
    if not found:
        raise UsageError(
            f"l0 threat '{text}' is not understood: write l0:20px for pixels or l0:60features for features"
        )
    return L0Ball("l0", float(found[1]), "px" if found[2] == "px" else "features")


L1 = ThreatKind(_parse_l1, "l1:12")
L0 = ThreatKind(_parse_l0, "l0:20px")
