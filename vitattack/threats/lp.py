"""Lp balls: the budget, the [0,1] box, and the only clamp in the code base."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, Self

from vitattack.core.errors import UsageError
from vitattack.core.registry import did_you_mean
from vitattack.threats.base import NOTHING, Evidence, ThreatKind, per_row

if TYPE_CHECKING:
    from torch import Tensor

    from vitattack.core.rng import SampleRng

Norm = Literal["linf", "l2", "l1", "l0"]
NORMS: tuple[Norm, ...] = ("linf", "l2")  # of this class; `L1Ball` and `L0Ball` are in sparse.py beside it
# Rounding in float32 may carry a point this far past the budget; anything further is a violation.
RELATIVE_SLACK, ABSOLUTE_SLACK = 1e-5, 1e-7
# An l2 budget beyond this is surely meant in units of 1/255.
LARGEST_L2 = 50.0


@dataclass(frozen=True)
class LpBall:
    """All images within `eps` of x in the norm, and inside [0,1]; eps is in pixel units."""

    norm: Norm
    eps: float

    def __post_init__(self) -> None:
        if self.norm in ("l1", "l0"):
            raise UsageError(
                f"{self.norm} balls are of another class: use L1Ball('l1', 12), or the text l1:12 or l0:20px"
            )
        if self.norm not in NORMS:
            raise UsageError(did_you_mean("norm", str(self.norm), NORMS))
        limit = 1.0 if self.norm == "linf" else LARGEST_L2
        if not (math.isfinite(self.eps) and 0 <= self.eps <= limit):
            eighth = 0 <= self.eps / 255 <= limit
            fix = (
                f"write {self.norm}:{self.eps:g}/255 if you mean 8-bit steps" if eighth else f"write {self.norm}:8/255"
            )
            raise UsageError(
                f"eps {self.eps:g} is not a {self.norm} budget for pixels in [0,1] (0 to {limit:g}): {fix}"
            )

    def __str__(self) -> str:
        return f"{self.norm}:{eps_text(self.eps)}"

    def of_rows(self, rows: Tensor) -> Self:
        """The ball of some rows of a batch: the same for all images, unless each has its own."""
        return self

    def random(self, x: Tensor, rng: SampleRng) -> Tensor:
        """A uniform point of the ball, clipped to the box."""
        if self.norm == "linf":
            return self.project(x, x + self.eps * rng.uniform(x, -1.0, 1.0))
        direction = rng.child("direction").normal(x)
        length = rng.child("length").uniform(x[:, :1, :1, :1]).pow(1 / x[0].numel()) if len(x) else x[:, :1, :1, :1]
        return self.project(x, x + self.eps * length * direction / per_row(l2_norms(direction), x).clamp_min(1e-12))

    def ascend(self, grad: Tensor) -> Tensor:
        """The unit step of steepest ascent in this norm; a zero gradient gives a zero step."""
        return grad.sign() if self.norm == "linf" else unit_l2(grad)

    def project(self, x: Tensor, x_adv: Tensor) -> Tensor:
        """Back into the ball around x, then into the box: both hold afterwards, because x is in the box."""
        if self.norm == "linf":
            return x_adv.clamp(x - self.eps, x + self.eps).clamp_(0, 1)
        delta = x_adv - x
        shrink = (self.eps / l2_norms(delta).clamp_min(1e-12)).clamp_max(1.0)
        return (x + delta * per_row(shrink, x)).clamp_(0, 1)

    def size(self, x: Tensor, x_adv: Tensor) -> Tensor:
        """(B,) the perturbation in this norm, in double precision."""
        delta = (doubled(x_adv) - doubled(x)).flatten(1)
        return delta.abs().amax(1) if self.norm == "linf" else l2_norms(delta)

    @property
    def kind(self) -> str:
        return self.norm

    def allows(self, x: Tensor, x_adv: Tensor, evidence: Evidence = NOTHING) -> Tensor:
        """(B,) whether each image is finite, inside [0,1] and inside the budget; `evidence` is not needed for that."""
        import torch

        flat = x_adv.flatten(1)
        in_box = (torch.isfinite(flat) & (flat >= 0) & (flat <= 1)).all(1)
        return in_box & self.within(x, x_adv)

    def within(self, x: Tensor, x_adv: Tensor) -> Tensor:
        """(B,) whether each image is inside the budget, wherever the box ends."""
        return (self.size(x, x_adv) <= self.eps * (1 + RELATIVE_SLACK) + ABSOLUTE_SLACK).to(x.device)


def shifted(x: Tensor, delta: Tensor) -> Tensor:
    """The images with one change as far as the box lets it, which is smaller than the change or equal in every norm."""
    return (x + delta).clamp(0, 1)


def doubled(x: Tensor) -> Tensor:
    """In double precision; Apple's GPUs have none."""
    return x.cpu().double() if x.device.type == "mps" else x.double()


def l2_norms(values: Tensor) -> Tensor:
    import torch

    norms: Tensor = torch.linalg.vector_norm(values.flatten(1), dim=1)
    return norms


def unit_l2(grad: Tensor) -> Tensor:
    """Each row divided by its l2 norm; scaled by the largest entry first, or squares of small gradients vanish."""
    import torch

    largest = per_row(grad.flatten(1).abs().amax(1), grad)
    scaled = grad / largest.clamp_min(torch.finfo(grad.dtype).tiny)
    return scaled / per_row(l2_norms(scaled), grad).clamp_min(1e-12)


def eps_text(eps: float) -> str:
    """8/255 rather than 0.03137254901960784, where that is what the number is."""
    steps = round(eps * 255)
    return f"{steps}/255" if steps and steps / 255 == eps else f"{eps:.17g}" if float(f"{eps:g}") != eps else f"{eps:g}"


def parsed_eps(norm: str, number: str, example: str) -> float:
    """The number of a budget such as `8/255` or `0.03`."""
    top, slash, bottom = number.partition("/")
    try:
        return float(top) / (float(bottom) if slash else 1.0)
    except (ValueError, ZeroDivisionError):
        raise UsageError(f"eps '{number}' is not a number: write {example}") from None


def _parse(norm: Norm, number: str) -> LpBall:
    if not number:
        raise UsageError(f"threat '{norm}' names no budget: write linf:8/255 or l2:8/255")
    return LpBall(norm, parsed_eps(norm, number, f"{norm}:8/255 or {norm}:0.03"))


LINF = ThreatKind(partial(_parse, "linf"), "linf:8/255")
L2 = ThreatKind(partial(_parse, "l2"), "l2:0.5")
