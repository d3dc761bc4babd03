"""Linear readouts that tell one point from many, one per image, all fitted at once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

STEPS = 1000


class Readouts(NamedTuple):
    """Directions (B, D) with a score of zero at `origin` (B, D), the outer points, and the lead (B,) over all inner ones."""

    weight: Tensor
    origin: Tensor
    lead: Tensor

    def scores(self, features: Tensor, rows: Tensor) -> Tensor:
        """(N,) scores of features by the readouts of `rows`: zero at an outer point, at most minus the lead inside."""
        return ((features - self.origin[rows]) * self.weight[rows]).sum(1)

    @property
    def separates(self) -> Tensor:
        """(B,) readouts that tell the outer point from every inner one."""
        return self.lead > 0


def fit(inner: Tensor, outer: Tensor) -> Readouts:
    """Fit the widest margin between inner points (B, n, D) and an outer one (B, D) each.

    Its direction is the shortest vector from the convex hull of the inner points to the outer one: a quadratic program
    on the simplex, solved for all images together by accelerated projected gradients in double precision.
    """
    away = (outer[:, None] - inner).double()
    gram = away @ away.mT
    step = 1 / torch.linalg.matrix_norm(gram, ord=2).clamp_min(1e-30)[:, None]
    share = torch.full(gram.shape[:2], 1 / gram.shape[1], dtype=gram.dtype, device=gram.device)
    ahead, momentum = share, 1.0
    for _ in range(STEPS):
        moved = _on_simplex(ahead - step * (gram @ ahead[..., None])[..., 0])
        following = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        ahead = moved + (momentum - 1) / following * (moved - share)
        share, momentum = moved, following
    weight = (share[..., None] * away).sum(1)
    weight = weight / weight.norm(dim=1, keepdim=True).clamp_min(1e-30)
    lead = (away * weight[:, None]).sum(2).amin(1)
    return Readouts(weight.to(outer.dtype), outer.clone(), lead.to(outer.dtype))


def _on_simplex(values: Tensor) -> Tensor:
    """The nearest points with coordinates that are not negative and sum to one (Held, Wolfe & Crowder 1974)."""
    ordered = values.sort(dim=1, descending=True).values
    excess = ordered.cumsum(1) - 1
    count = torch.arange(1, values.shape[1] + 1, device=values.device)
    last = (ordered * count > excess).sum(1, keepdim=True)
    threshold = excess.gather(1, last - 1) / last
    return (values - threshold).clamp_min(0)
