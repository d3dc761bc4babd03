"""Architectures of the red team's models: six families of about 0.1 M parameters for 32 px images."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from timm.models.mlp_mixer import MlpMixer
from torch import nn

from vitattack.models.architectures.build import ARCHITECTURES


def mixer(num_classes: int = 10) -> nn.Module:
    """Build an MLP-mixer of six blocks; timm's own names fix a patch of 16."""
    return MlpMixer(num_classes=num_classes, img_size=32, patch_size=4, num_blocks=6, embed_dim=64)


class Family(NamedTuple):
    """An architecture by name, with arguments."""

    arch: str
    kwargs: Mapping[str, Any] = MappingProxyType({})


FAMILIES = {
    "cnn": Family("small:tiny_cnn_32", {"width": 12}),
    "convstem": Family("small:tiny_vit_32", {"embed_dim": 48, "depth": 4, "num_heads": 4}),
    "vit": Family("vit_tiny_patch4_32", {"embed_dim": 48, "depth": 4, "num_heads": 4}),
    "swin": Family(
        "swin_tiny_patch4_window7_224",
        {"img_size": 32, "patch_size": 2, "window_size": 4, "embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4]},
    ),
    "xcit": Family("xcit_small_12_p4_32", {"embed_dim": 32, "depth": 4, "num_heads": 4}),
    "mixer": Family("redteam_mixer"),
}
ARCHITECTURES.add("redteam_mixer", mixer)
