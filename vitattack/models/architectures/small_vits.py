"""Plain ViTs for 32 px images, and the fitting of weights for larger patches and images to them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitattack.core.errors import UsageError


def vit_32(size: str, patch_size: int, *, num_classes: int = 10, img_size: int = 32, **kwargs: Any) -> nn.Module:
    """Build timm's ViT of a size (tiny, small, base, large) for 32 px images in patches of 2 or 4."""
    import timm

    settings = {"img_size": img_size, "num_classes": num_classes, **kwargs}
    model: nn.Module = timm.create_model(
        f"vit_{size}_patch16_224", pretrained=False, **{"patch_size": patch_size, **settings}
    )
    return model


def fold_kernel(weight: Tensor, patch_size: int) -> Tensor:
    """Fold a patch kernel (D, C, P, P) for images smaller by a whole factor by summing its sub-blocks.

    Its output is that of the old kernel on the image enlarged by nearest neighbours (Mo et al., NeurIPS 2022).
    """
    old = weight.shape[-1]
    if old % patch_size or weight.shape[-2] != old:
        raise UsageError(f"a {old} x {old} patch kernel does not fold into {patch_size} x {patch_size}: take a divisor")
    factor = old // patch_size
    return weight.reshape(*weight.shape[:2], patch_size, factor, patch_size, factor).sum((3, 5))


def interpolate_positions(positions: Tensor, grid: tuple[int, int], prefix: int) -> Tensor:
    """Interpolate position embeddings (1, prefix + N, D) of a square grid bilinearly to another; keep prefix tokens."""
    prefix_tokens, patches = positions[:, :prefix], positions[:, prefix:]
    side = round(patches.shape[1] ** 0.5)
    if side * side != patches.shape[1]:
        raise UsageError(f"{patches.shape[1]} position embeddings are no square grid: check --arch")
    if (side, side) == tuple(grid):
        return positions
    square = patches.transpose(1, 2).reshape(1, -1, side, side)
    resized = F.interpolate(square, size=tuple(grid), mode="bilinear")
    return torch.cat([prefix_tokens, resized.flatten(2).transpose(1, 2)], dim=1)
