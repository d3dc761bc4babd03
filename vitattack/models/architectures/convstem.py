"""ViTs and ConvNeXts with a convolution stem, of "Revisiting Adversarial Training for ImageNet" (Singh et al., 2023).

Modules are named as in the authors' checkpoints, so that states load without renaming.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from timm.layers.norm import LayerNorm2d
from torch import Tensor, nn
from torch.nn import functional as F

VITS = {"small": "vit_small_patch16_224", "medium": "deit3_medium_patch16_224", "base": "vit_base_patch16_224"}
HALVINGS = ((48, 2), (96, 2), (192, 2), (384, 2))  # four of them: patches of 16
CONVNEXTS = {
    "tiny": ((48, 2), (96, 2)),
    "small": ((48, 2), (96, 2)),
    "base": ((64, 2), (96, 2), (128, 1)),
    "large": ((96, 2), (144, 2), (192, 1)),
}


class ConvStem(nn.Module):
    """3 x 3 convolutions of (width, stride), each followed by a layer norm over channels and GELU; then a 1 x 1 to `out`."""

    def __init__(self, layers: Sequence[tuple[int, int]], out: int | None = None) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        width = 3
        for following, stride in layers:
            parts += [nn.Conv2d(width, following, 3, stride, 1), LayerNorm2d(following, eps=1e-6), nn.GELU()]
            width = following
        if out is not None:
            parts.append(nn.Conv2d(width, out, 1))
        self.stem = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.stem(x)
        return out


def vit_convstem(size: str, **kwargs: Any) -> nn.Module:
    """Build ViT-{S,M,B} with four halving convolutions in place of the 16 x 16 patch projection."""
    import timm

    model: Any = timm.create_model(VITS[size], pretrained=False, **kwargs)
    model.patch_embed.proj = ConvStem(HALVINGS, out=model.embed_dim)
    return model  # type: ignore[no-any-return]


def convnext_convstem(size: str, **kwargs: Any) -> nn.Module:
    """Build ConvNeXt-{T,S,B,L} with two halving convolutions in place of the 4 x 4 patches."""
    import timm

    model: Any = timm.create_model(f"convnext_{size}", pretrained=False, **kwargs)
    model.stem = ConvStem(CONVNEXTS[size])
    return model  # type: ignore[no-any-return]


class IsotropicBlock(nn.Module):
    """A ConvNeXt block without layer scale, with modules named as in the original code."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.pwconv1 = nn.Linear(width, 4 * width)
        self.pwconv2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        widened: Tensor = self.pwconv2(F.gelu(self.pwconv1(out)))
        return x + widened.permute(0, 3, 1, 2)


class ConvNextIso(nn.Module):
    """A ConvNeXt that keeps one resolution, as a ViT does."""

    def __init__(self, width: int = 384, depth: int = 18, num_classes: int = 1000) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.stem = ConvStem(HALVINGS, out=width)
        self.blocks = nn.Sequential(*(IsotropicBlock(width) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        features = torch.mean(self.blocks(self.stem(x)), dim=(2, 3))
        out: Tensor = self.head(self.norm(features))
        return out


def convnext_iso_convstem(**kwargs: Any) -> nn.Module:
    """Build an isotropic ConvNeXt with a convolution stem."""
    return ConvNextIso(**kwargs)
