"""Heat maps over positions: EigenCAM, and numbers that say how far a map spreads and whether it lies on the object."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def eigencam(activations: Tensor) -> Tensor:
    """(B, h, w) maps in [0, 1] of (B, C, h, w) activations (Muhammad and Yeasin, IJCNN 2020).

    Activations of an image, centred over positions, are projected on their first right singular vector. A singular vector
    has no sign: the map is turned such that its largest value in magnitude is positive. What is negative then is cut off.
    """
    batch, channels, height, width = activations.shape
    flat = activations.detach().double().reshape(batch, channels, height * width).transpose(1, 2)
    flat = flat - flat.mean(1, keepdim=True)
    # The first left singular vector is the first eigenvector of the smaller of the two products of the matrix with itself.
    if height * width <= channels:
        _, vectors = torch.linalg.eigh(flat @ flat.transpose(1, 2))
        left = vectors[..., -1]
        projected = left * (flat.transpose(1, 2) @ left[..., None]).squeeze(-1).norm(dim=-1, keepdim=True)
    else:
        _, vectors = torch.linalg.eigh(flat.transpose(1, 2) @ flat)
        projected = (flat @ vectors[..., -1:]).squeeze(-1)
    turned = torch.where(projected.amin(1, keepdim=True).abs() > projected.amax(1, keepdim=True), -projected, projected)
    return to_unit(turned.relu().reshape(batch, height, width))


def to_unit(maps: Tensor) -> Tensor:
    """Maps scaled to [0, 1] one by one; a constant map becomes zero."""
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    return torch.where(high > low, (maps - low) / (high - low).clamp_min(1e-300), torch.zeros_like(maps))


def around_mean(maps: Tensor) -> Tensor:
    """Maps scaled to [0, 1] one by one such that 0.5 is their mean; a constant map becomes 0.5."""
    away = maps - maps.mean((1, 2), keepdim=True)
    most = away.abs().amax((1, 2), keepdim=True)
    return 0.5 + torch.where(most > 0, away / (2 * most), torch.zeros_like(away))


def enlarged(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Maps at the size of the image, bilinear."""
    return F.interpolate(maps[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]


def shares(maps: Tensor) -> Tensor:
    """Maps as shares that sum to one; an empty map counts as even."""
    flat = maps.double().clamp_min(0)
    total = flat.sum((1, 2), keepdim=True)
    even = torch.full_like(flat, 1 / flat[0].numel())
    return torch.where(total > 0, flat / total.clamp_min(1e-300), even)


def entropy(maps: Tensor) -> Tensor:
    """(B,) entropy of the shares over that of an even map: 0 for one position, 1 for all alike."""
    p = shares(maps).flatten(1)
    return -(p * p.clamp_min(1e-300).log()).sum(1) / math.log(p.shape[1])


def spread(maps: Tensor) -> Tensor:
    """(B,) root mean square distance from the centre of the map, over that of an even map."""
    p = shares(maps)
    rows = torch.arange(p.shape[1], dtype=p.dtype, device=p.device)[None, :, None]
    columns = torch.arange(p.shape[2], dtype=p.dtype, device=p.device)[None, None, :]

    def variance(places: Tensor) -> Tensor:
        mean = (p * places).sum((1, 2), keepdim=True)
        return (p * (places - mean) ** 2).sum((1, 2))

    even = (p.shape[1] ** 2 - 1 + p.shape[2] ** 2 - 1) / 12
    return ((variance(rows) + variance(columns)) / even).sqrt()


def centre_share(maps: Tensor) -> Tensor:
    """(B,) share of the map in the middle half of rows and columns, a quarter of the image; 0.25 for an even map."""
    p = shares(maps)
    return (_overlap(p.shape[1], p)[None, :, None] * _overlap(p.shape[2], p)[None, None, :] * p).sum((1, 2))


def _overlap(size: int, like: Tensor) -> Tensor:
    """How much of each of so many positions lies in the middle half of them."""
    at = torch.arange(size, dtype=like.dtype, device=like.device)
    return ((at + 1).clamp(max=0.75 * size) - at.clamp(min=0.25 * size)).clamp_min(0)


def on_mask(maps: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """(B,) share of the map on the object, and overlap of the object with the equally many highest positions.

    The overlap is intersection over union. Masks are (B, h, w), of the size of the maps; both are NaN for an empty mask.
    """
    inside = masks.bool().flatten(1)
    share = (shares(maps).flatten(1) * inside).sum(1)
    order = maps.flatten(1).argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    count = inside.sum(1, keepdim=True)
    highest = order < count
    union = (highest | inside).sum(1)
    both = (highest & inside).sum(1) / union.clamp_min(1)
    empty = count.squeeze(1) == 0
    nan = torch.full_like(share, math.nan)
    return torch.where(empty, nan, share), torch.where(empty, nan, both.to(share.dtype))
