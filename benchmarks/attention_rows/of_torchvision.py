"""torchvision: its transformers, small, and its convolutional families, with their softmaxes counted by hand."""

from __future__ import annotations

from functools import partial

import torchvision.models as models

from attention_rows.row import Row

LIBRARY = "torchvision"


def swin(block: str) -> models.SwinTransformer:
    made = getattr(models.swin_transformer, f"SwinTransformerBlock{block}")
    merging = getattr(models.swin_transformer, f"PatchMerging{block}")
    sizes = {"patch_size": [2, 2], "embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4], "window_size": [4, 4]}
    return models.SwinTransformer(**sizes, num_classes=10, block=made, downsample_layer=merging)


def maxvit() -> models.MaxVit:
    return models.MaxVit(
        input_size=(64, 64),
        stem_channels=16,
        partition_size=4,
        block_channels=[16, 32],
        block_layers=[1, 1],
        head_dim=8,
        stochastic_depth_prob=0.0,
        num_classes=10,
    )


CNNS = (
    "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "googlenet", "mnasnet0_5",
    "mobilenet_v2", "mobilenet_v3_small", "regnet_y_400mf", "resnet18", "resnext50_32x4d", "shufflenet_v2_x0_5",
    "squeezenet1_0", "vgg11_bn", "wide_resnet50_2",
)  # fmt: skip
QUIET = {"googlenet": {"init_weights": True}}

ROWS = (
    Row(LIBRARY, "vit", lambda: models.VisionTransformer(32, 8, 3, 4, 64, 128, num_classes=10), 3, "depth"),
    Row(LIBRARY, "swin", partial(swin, ""), 4, "2 + 2"),
    Row(LIBRARY, "swin v2", partial(swin, "V2"), 4, "2 + 2"),
    Row(LIBRARY, "maxvit", maxvit, 4, "(window + grid) x 2", 64),
    *(
        Row(LIBRARY, name, partial(models.get_model, name, **QUIET.get(name, {})), 0, "no softmax", 128, ignored=0)
        for name in CNNS
    ),
)
