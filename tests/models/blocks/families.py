"""Small models of the families that blocks are probed in, with random weights."""

from __future__ import annotations

from functools import cache

import timm
import torch
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from vitattack.models.architectures.small import SMALL
from vitattack.models.victim import Victim

SIZE = 32


def _victim(model: nn.Module, name: str) -> Victim:
    return Victim(model.eval(), name=name, num_classes=10, input_size=SIZE).eval()


@cache
def plain_vit(global_pool: str = "token", registers: int = 0) -> Victim:
    """A ViT of 16 patches; with `registers`, tokens that are neither class token nor patches."""
    torch.manual_seed(0)
    pooled = global_pool != "token"
    model = VisionTransformer(
        img_size=SIZE, patch_size=8, embed_dim=24, depth=3, num_heads=2, num_classes=10, reg_tokens=registers,
        class_token=not pooled, global_pool=global_pool,
    )  # fmt: skip
    nn.init.normal_(model.head.weight, std=0.5)
    for name, value in model.named_parameters():
        if name.endswith(("cls_token", "reg_token", "pos_embed")):
            nn.init.normal_(value, std=0.2)
    return _victim(model, f"vit-{global_pool}")


@cache
def windowed_swin() -> Victim:
    torch.manual_seed(0)
    model = SwinTransformer(
        img_size=SIZE, patch_size=2, window_size=4, embed_dim=16, depths=(2, 2), num_heads=(2, 4), num_classes=10
    )
    nn.init.normal_(model.head.fc.weight, std=0.5)
    return _victim(model, "swin")


@cache
def xcit() -> Victim:
    torch.manual_seed(0)
    model = timm.create_model("xcit_nano_12_p16_224", img_size=SIZE, num_classes=10, depth=2, embed_dim=32, num_heads=2)
    for block in [*model.blocks, *model.cls_attn_blocks]:
        for name, value in block.named_parameters():
            if "gamma" in name:
                nn.init.ones_(value)
    nn.init.normal_(model.head.weight, std=0.5)
    return _victim(model, "xcit")


@cache
def cnn() -> Victim:
    torch.manual_seed(0)
    return _victim(SMALL["tiny_cnn_32"](width=8), "cnn")
