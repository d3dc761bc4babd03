"""timm: every family that holds an attention softmax, one small member each, with its layers counted by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import timm
import torch
from timm.models._registry import _module_to_models
from torch import nn

from attention_rows.row import Row

LIBRARY = "timm"


@dataclass(frozen=True)
class Family:
    module: str
    model: str
    layers: int
    why: str  # where the number comes from
    size: int = 224
    ignored: int = 0
    fast: bool = False
    mixes_batch: bool = False
    base: float = 1.0
    settings: dict[str, Any] = field(default_factory=dict)

    def row(self) -> Row:
        build = partial(timm.create_model, self.model, num_classes=10, **self.settings)
        why, name = self.why, f"{self.module}: {self.model}"
        return Row(LIBRARY, name, build, self.layers, why, self.size, self.ignored, self.mixes_batch, self.base)


def one(module: str, model: str, layers: int, why: str, size: int = 224, **rest: Any) -> Family:
    known = {key: rest.pop(key) for key in ("ignored", "fast", "mixes_batch", "base") if key in rest}
    return Family(module, model, layers, why, size, settings=rest, **known)


FAMILIES = (
    one("beit", "beit_base_patch16_224", 3, "depth, cut to 3", depth=3),
    one("byoanet", "halonet_h1", 19, "3 + 3 + 10 + 3 halo blocks", 256),
    one("byoanet", "botnet26t_256", 3, "one in stage 3, two in stage 4", 256),
    one("byoanet", "lambda_resnet26t", 3, "keys of three lambda layers", 256),
    one("byobnet", "resnet50_clip", 1, "attention pooling"),
    one("cait", "cait_xxs24_224", 26, "24 talking-heads + 2 class attention", fast=True),
    one("coat", "coat_tiny", 26, "2 x 4 serial + 6 x 3 parallel"),
    one("coat", "coat_lite_tiny", 8, "2 x 4 serial", fast=True),
    one("convit", "convit_tiny", 22, "10 gated layers with two softmaxes + 2", fast=True),
    one("cpubone", "cpubone_nano", 3, "3 attention blocks"),
    one("crossvit", "crossvit_tiny_240", 21, "3 x (1 + 4 own, 2 cross)", 240),
    one("csatv2", "csatv2", 4, "4 of tokens; 14 attend over the batch, one image at a time", 512, ignored=14, mixes_batch=True),
    one("davit", "davit_tiny", 12, "6 of windows + 6 of channels"),
    one("deepseek_vit", "deepseek_vit_412m", 2, "depth, cut to 2", 140, depth=2, img_size=140),
    one("deit", "deit_tiny_distilled_patch16_224", 12, "depth"),
    one("edgenext", "edgenext_xx_small", 3, "one of channels in stages 2, 3 and 4", 256, fast=True),
    one("efficientformer", "efficientformer_l1", 1, "last block"),
    one("efficientformer_v2", "efficientformerv2_s0", 5, "2 + 2 + one downsampling"),
    one("efficientvim", "efficientvim_m1", 6, "2 + 2 + 2 mixers; the weights of 4 heads are ignored", ignored=1),
    one("efficientvit_msra", "efficientvit_m0", 24, "1 + 2 + 3 blocks of 4 cascaded heads"),
    one("eva", "eva02_tiny_patch14_224", 12, "depth", fast=True),
    one("fastvit", "fastvit_sa12", 2, "last stage", 256),
    one("gcvit", "gcvit_xxtiny", 12, "2 + 2 + 6 + 2"),
    one("gemma4_vit", "gemma4_vit_167m", 2, "depth, cut to 2", 192, depth=2, img_size=192),
    one("hiera", "hiera_tiny_224", 12, "1 + 2 + 7 + 2"),
    one("hieradet_sam2", "hieradet_small", 16, "1 + 2 + 11 + 2", 256),
    one("iformer", "iformer_t", 5, "3 in stage 3 + 2 in stage 4"),
    one("levit", "levit_128s", 11, "2 + 3 + 4 + 2 downsampling", fast=True),
    one("lowformer", "lowformer_b0", 7, "4 in stage 4 + 3 in stage 5"),
    one("maxxvit", "test_coatnet", 3, "the transformer stages", 160),
    one("maxxvit", "test_maxvit", 8, "4 blocks of window and grid", 160, fast=True),
    one("metaformer", "caformer_s18", 12, "9 + 3"),
    one("mobilenetv3", "mobilenetv4_hybrid_medium", 8, "4 + 4 multi-query", 256),
    one("mobilenetv5", "mobilenetv5_base", 13, "multi-query blocks", 256),
    one("mobilevit", "mobilevit_xxs", 9, "2 + 4 + 3", 256),
    one("mobilevit", "mobilevitv2_050", 9, "2 + 4 + 3 products", 256, fast=True),
    one("mvitv2", "mvitv2_tiny", 10, "1 + 2 + 5 + 2"),
    one("naflexvit", "naflexvit_base_patch16_gap", 2, "depth, cut to 2", 384, depth=2),
    one("nest", "nest_tiny", 12, "2 + 2 + 8"),
    one("nextvit", "nextvit_small", 4, "one per transformer block"),
    one("pit", "pit_xs_224", 12, "2 + 6 + 4"),
    one("pvt_v2", "pvt_v2_b0", 8, "2 x 4", fast=True),
    one("qwen3_vit", "qwen3_vit_88m", 2, "depth, cut to 2", 256, depth=2, img_size=256),
    one("resnest", "resnest14d", 0, "split attention", ignored=4, fast=True),
    one("resnet", "resnet18", 0, "none"),
    one("shvit", "shvit_s1", 9, "4 + 5"),
    one("sknet", "skresnet18", 0, "selective kernels", ignored=8, fast=True),
    one("byobnet", "gcresnet33ts", 0, "global context", 256, ignored=10, fast=True),
    one("swin_transformer", "swin_tiny_patch4_window7_224", 12, "2 + 2 + 6 + 2", fast=True),
    one("swin_transformer_v2", "swinv2_tiny_window8_256", 12, "2 + 2 + 6 + 2", 256),
    one("swin_transformer_v2_cr", "swinv2_cr_tiny_224", 12, "2 + 2 + 6 + 2"),
    one("tiny_vit", "tiny_vit_5m_224", 10, "2 + 6 + 2"),
    one("tnt", "tnt_s_patch16_224", 24, "12 x (pixels, patches)"),
    one("twins", "twins_svt_small", 18, "2 + 2 + 10 + 4"),
    one("twins", "twins_pcpvt_small", 16, "3 + 4 + 6 + 3"),
    one("visformer", "visformer_tiny", 8, "4 + 4; scores of 500,000, halved at 0.001", base=1e-3),
    one("vision_transformer", "vit_tiny_patch16_224", 12, "depth", fast=True),
    one("vision_transformer", "test_vit3", 10, "9 + attention pooling", 160),
    one("vision_transformer_hybrid", "vit_tiny_r_s16_p8_224", 12, "depth"),
    one("vision_transformer_relpos", "vit_relpos_small_patch16_224", 12, "depth"),
    one("vision_transformer_sam", "samvit_base_patch16_224", 3, "depth, cut to 3", depth=3),
    one("vitamin", "vitamin_small_224", 14, "depth of the transformer stage"),
    one("volo", "volo_d1_224", 20, "4 outlook + 14 + 2 class attention"),
    one("xcit", "xcit_nano_12_p16_224", 14, "12 of channels + 2 class attention", fast=True),
)  # fmt: skip

# The other model files of timm 1.0.31. A probe of their smallest member finds no softmax at all.
WITHOUT = {
    "convmixer", "convnext", "cspnet", "cspnext", "densenet", "dla", "dpn", "efficientnet", "efficientvit_mit", "fasternet",
    "focalnet", "ghostnet", "hardcorenas", "hgnet", "hrnet", "inception_next", "inception_resnet_v2", "inception_v3",
    "inception_v4", "lcnetv2", "mambaout", "mlp_mixer", "nasnet", "nfnet", "pnasnet", "rdnet", "regnet", "repghost", "repvit",
    "res2net", "resnetv2", "rexnet", "selecsls", "senet", "sequencer", "starnet", "swiftformer", "tresnet", "vgg", "vovnet",
    "xception", "xception_aligned",
}  # fmt: skip


def smallest(module: str) -> str:
    """The smallest member of a model file."""
    sizes = {}
    for name in sorted(_module_to_models[module]):
        if timm.get_pretrained_cfg(name) is None:
            continue
        with torch.device("meta"):
            sizes[name] = sum(p.numel() for p in timm.create_model(name).parameters())
        if sizes[name] < 6_000_000:
            break
    return min(sizes, key=lambda name: sizes[name])


def without(module: str) -> Row:
    """The row of a model file that holds no softmax."""
    name = smallest(module)
    size = timm.get_pretrained_cfg(name).input_size[-1]

    def build() -> nn.Module:
        model: nn.Module = timm.create_model(name)
        return model

    return Row(LIBRARY, f"{module}: {name}", build, 0, "no softmax", size, ignored=0)


def rows() -> list[Row]:
    """A row per family of the installed timm; what the table does not know is expected to hold no softmax."""
    known = {family.module for family in FAMILIES}
    return [family.row() for family in FAMILIES] + [
        without(module) for module in sorted(set(_module_to_models) - known)
    ]
