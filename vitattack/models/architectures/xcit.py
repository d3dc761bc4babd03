"""The 12-layer XCiTs of "A Light Recipe to Train Robust Vision Transformers" (Debenedetti et al., SaTML 2023).

timm has only the small one, and none for 32 px images.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from vitattack.core.errors import UsageError

WIDTHS = {"small": (384, 8), "medium": (512, 8), "large": (768, 16)}
NATIVE_PATCH = 16


def xcit_12(size: str, *, patch_size: int = NATIVE_PATCH, img_size: int = 224, **kwargs: Any) -> nn.Module:
    """Build XCiT-{S,M,L}12 with patches of 16, or with a stem that halves the image fewer times."""
    import timm

    width, heads = WIDTHS[size]
    settings = {"embed_dim": width, "num_heads": heads, "img_size": img_size, **kwargs}
    model: nn.Module = timm.create_model("xcit_small_12_p16_224", pretrained=False, **settings)
    if patch_size != NATIVE_PATCH:
        adapt_stem(model, patch_size)
    return model


def adapt_stem(model: nn.Module, patch_size: int) -> None:
    """Make patches smaller with the same weights (appendix D): the first convolutions of the stem stop halving.

    A stem of n halvings makes patches of 2^n, so the first log2(old / new) strides become 1.
    """
    embed: Any = model.patch_embed
    convolutions = [m for m in embed.proj.modules() if isinstance(m, nn.Conv2d) and m.stride == (2, 2)]
    ratio = embed.patch_size // patch_size if 0 < patch_size <= embed.patch_size else 0
    halvings = ratio.bit_length() - 1
    if ratio * patch_size != embed.patch_size or ratio != 2**halvings or halvings > len(convolutions):
        raise UsageError(f"patch size {patch_size} cannot be made from {embed.patch_size}: halve it, such as 8 or 4")
    for convolution in convolutions[:halvings]:
        convolution.stride = (1, 1)
    embed.patch_size = patch_size
    embed.num_patches = (embed.img_size[0] // patch_size) * (embed.img_size[1] // patch_size)
