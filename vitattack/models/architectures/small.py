"""Small architectures of the embedded models, registered by name so that a zoo entry needs no code of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from vitattack.core.registry import Registry

SMALL: Registry[Callable[..., nn.Module]] = Registry("architecture")


class ConvStem(nn.Module):
    """Two stride-2 convolutions in place of timm's patch embedding: (B, 3, 4h, 4w) -> (B, h*w, D)."""

    def __init__(
        self,
        img_size: int = 32,
        patch_size: int = 4,
        in_chans: int = 3,
        embed_dim: int = 128,
        bias: bool = True,
        **_: Any,
    ) -> None:
        super().__init__()
        if patch_size != 4:
            raise ValueError("ConvStem halves the image twice: patch_size is 4")
        self.img_size = (img_size, img_size)
        self.patch_size = (patch_size, patch_size)
        self.grid_size = (img_size // patch_size, img_size // patch_size)
        self.num_patches = self.grid_size[0] * self.grid_size[1]
        self.convs = nn.Sequential(
            nn.Conv2d(in_chans, embed_dim // 2, 3, stride=2, padding=1, bias=bias),
            nn.GELU(),
            nn.Conv2d(embed_dim // 2, embed_dim, 3, stride=2, padding=1, bias=bias),
        )

    def forward(self, x: Tensor) -> Tensor:
        tokens: Tensor = self.convs(x)
        return tokens.flatten(2).transpose(1, 2)


@SMALL.register("tiny_vit_32")
def tiny_vit_32(num_classes: int = 10, embed_dim: int = 128, depth: int = 6, num_heads: int = 4) -> nn.Module:
    """Build a 1.1 M parameter ViT for 32 px images: convolution stem, 64 tokens, mean pooling, no class token."""
    return VisionTransformer(
        img_size=32,
        patch_size=4,
        embed_dim=embed_dim,
        depth=depth,
        num_heads=num_heads,
        num_classes=num_classes,
        class_token=False,
        global_pool="avg",
        embed_layer=ConvStem,
    )


class Residual(nn.Module):
    """Two 3 x 3 convolutions with batch normalisation, added to their input."""

    def __init__(self, width_in: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width_in, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
        )
        same = width_in == width and stride == 1
        self.skip = nn.Identity() if same else nn.Conv2d(width_in, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = (self.body(x) + self.skip(x)).relu()
        return out


@SMALL.register("tiny_cnn_32")
def tiny_cnn_32(num_classes: int = 10, width: int = 32) -> nn.Module:
    """Build a 0.7 M parameter residual CNN for 32 px images: the other family in transfer studies."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        Residual(width, width),
        Residual(width, 2 * width, stride=2),
        Residual(2 * width, 2 * width),
        Residual(2 * width, 4 * width, stride=2),
        Residual(4 * width, 4 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, num_classes),
    )
