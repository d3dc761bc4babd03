"""A ResNet for 32 px images: the CNN control of the light recipe."""

from __future__ import annotations

from typing import Any

from torch import nn


def resnet50_32(num_classes: int = 10, **kwargs: Any) -> nn.Module:
    """Build a ResNet-50 whose first convolution is 3 x 3 with stride 1, without max pooling."""
    import timm

    model: Any = timm.create_model("resnet50", pretrained=False, num_classes=num_classes, **kwargs)
    model.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    model.maxpool = nn.Identity()
    return model  # type: ignore[no-any-return]
