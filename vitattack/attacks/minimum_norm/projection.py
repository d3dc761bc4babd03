"""Projection onto the intersection of a hyperplane and the box [0,1], for many rows at once."""

from __future__ import annotations

import torch
from torch import Tensor


def onto_plane(point: Tensor, slope: Tensor, gap: Tensor, norm: str) -> Tensor:
    """(N, D), (N, D), (N,) -> (N, D): the smallest move inside [0,1] with gap + slope . move = 0.

    Where the plane misses the box, the move goes to the corner nearest to it; for a slope of zero it is zero. Pixel i
    moves by min(length * rate_i, room_i) with rate 1 in linf and |slope_i| in l2, so the gap that a length closes is
    concave and piecewise linear in it. Newton's method from zero approaches the root from below and is exact once no
    further pixel reaches the edge of the box: a handful of iterations, cheaper than sorting pixels by room. In l1 pixels go
    to the edge one after another, those with the largest slopes first.
    """
    # without this, squares of small slopes underflow
    scale = slope.abs().amax(1, keepdim=True).clamp_min(torch.finfo(slope.dtype).tiny)
    weight = slope.abs() / scale
    need = (gap / scale[:, 0]).abs().clamp_max(2.0 * slope.shape[1])  # more than all pixels together can move
    direction = torch.where(gap >= 0, -1.0, 1.0).to(slope)[:, None] * slope.sign()
    room = torch.where(direction > 0, 1 - point, point)
    if norm == "l1":
        return direction * _one_by_one(weight, room, need)
    rate = weight if norm == "l2" else (weight > 0).to(weight)
    gain = weight * rate
    free = _dot(gain, (room > 0).to(gain))
    length = torch.where(free > 0, need / free, 0)
    while True:
        moved = torch.minimum(length[:, None] * rate, room)
        still = _dot(gain, (moved < room).to(gain))
        if bool(((still == free) | (still == 0)).all()):
            return direction * moved
        missing = (need - _dot(weight, moved)).clamp_min(0)
        length = torch.where(still > 0, length + missing / still, length)
        free = still


def _one_by_one(weight: Tensor, room: Tensor, need: Tensor) -> Tensor:
    """Move each pixel as far as its room or what is still needed allows, those with the largest weights first."""
    ordered, order = weight.sort(dim=1, descending=True, stable=True)
    gain = ordered * room.gather(1, order)
    missing = (need[:, None] - (gain.cumsum(1) - gain)).clamp_min(0)
    moved = torch.where(missing >= gain, room.gather(1, order), missing / ordered.clamp_min(1e-30))
    return torch.zeros_like(room).scatter_(1, order, moved * (ordered > 0))


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """(N,) row-wise dot products; `sum` adds pairwise, where a running sum of 150,000 float32 loses two digits."""
    return (a * b).sum(1)
