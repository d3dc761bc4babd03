"""Hugging Face transformers: image classifiers, backbones and image towers, small, with their softmaxes counted by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attention_rows.row import Row, Taken

LIBRARY = "transformers"
VIT: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "patch_size": 8,
    "image_size": 32,
}
BOTH = ("eager", "sdpa")


def made(
    model: str, config: str, kernel: str, settings: dict[str, Any], given: Any, taken: Any, settled: bool
) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        chosen = getattr(transformers, config)(**settings)
        chosen._attn_implementation = kernel
        for part in vars(chosen).values():
            if isinstance(part, transformers.PretrainedConfig):
                part._attn_implementation = kernel
        built: nn.Module = lively(getattr(transformers, model)(chosen))
        if settled:
            settle(built, chosen.image_size)
        return built if given is None and taken is None else Taken(built, given, taken)

    return build


def lively(model: nn.Module) -> nn.Module:
    """Weights of a size that attention looks at something: those of an initialisation leave scores of about zero."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1 and weight.is_floating_point():
                fan_in = max(2, weight[0].numel())
                weight.copy_(torch.randn(weight.shape, generator=generator) * 1.5 / fan_in**0.5)
    return model


def settle(model: nn.Module, size: int) -> None:
    """Statistics of batch norms as they are of such images: those of an initialisation let features die out."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        model.train()(torch.rand(4, 3, size, size, generator=torch.Generator().manual_seed(4)))


def tokens(out: Any) -> Tensor:
    """Ten features of what a tower returns, as logits."""
    if not isinstance(out, Tensor):
        out = next(out[name] for name in ("last_hidden_state", "feature_maps") if name in out)
    out = out[-1] if isinstance(out, tuple | list) else out
    features: Tensor = out.flatten(2).mean(2) if out.dim() == 4 else out.mean(1)
    return features[:, :10]


def rows(
    name: str,
    layers: int,
    why: str,
    *,
    config: str | None = None,
    kernels: tuple[str, ...] = BOTH,
    given: Any = None,
    taken: Any = None,
    base: dict[str, Any] | None = None,
    drop: tuple[str, ...] = (),
    settled: bool = False,
    **settings: Any,
) -> list[Row]:
    """A row per kernel. Towers, which end in no logits, give ten features."""
    known = {
        key: settings.pop(key)
        for key in ("ignored", "mixes_batch", "size", "no_gradient", "draws", "without_effect")
        if key in settings
    }
    head = "Classification" in name
    config = config or name.partition("For")[0].removesuffix("Model").removesuffix("Backbone") + "Config"
    whole = {key: value for key, value in ((VIT if base is None else base) | settings).items() if key not in drop}
    if head:
        whole["num_labels"] = 10
        taken = taken or (lambda out: out.logits if "logits" in out else out.last_hidden_state)
    taken = taken or tokens
    known = {"size": whole.get("image_size", 32)} | known
    return [
        Row(LIBRARY, f"{name} {kernel}", made(name, config, kernel, whole, given, taken, settled), layers, why, **known)
        for kernel in kernels
    ]


EAGER = ("eager",)
IMAGE = "ForImageClassification"
SWIN: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [2, 2],
    "window_size": 4,
    "mlp_ratio": 1.0,
}
CNNS: dict[str, dict[str, Any]] = {
    "Bit": {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 1], "num_groups": 4},
    "ConvNext": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
    "ConvNextV2": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
    "EfficientNet": {"width_coefficient": 0.2, "depth_coefficient": 0.2, "image_size": 64, "hidden_dim": 256},
    "FocalNet": {"embed_dim": 16, "depths": [1, 1], "image_size": 32, "focal_levels": [2, 2], "focal_windows": [3, 3]},
    "HGNetV2": {},
    "MobileNetV1": {"depth_multiplier": 0.25},
    "MobileNetV2": {"depth_multiplier": 0.25},
    "PoolFormer": {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1]},
    "PPLCNet": {},
    "RegNet": {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "groups_width": 8},
    "ResNet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
    "SwiftFormer": {
        "depths": [1, 1],
        "embed_dims": [16, 32],
        "image_size": 64,
        "downsamples": [True, True],
        "ignored": 2,
    },
    "TextNet": {},
}

DETR: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "num_queries": 4,
    "use_timm_backbone": False,
    "use_pretrained_backbone": False,
    "backbone": None,
    "backbone_config": {
        "model_type": "resnet",
        "embedding_size": 8,
        "hidden_sizes": [8, 16, 16, 16],
        "depths": [1, 1, 1, 1],
        "out_features": ["stage4"],
    },
}
ROWS: tuple[Row, ...] = tuple(
    row
    for group in (
        *(
            rows(
                f"{name}{IMAGE}",
                0,
                "no softmax",
                config=f"{name}Config",
                kernels=EAGER,
                base={},
                size=settings.get("image_size", 64),
                **({"ignored": 0} | settings),
            )
            for name, settings in CNNS.items()
        ),
        rows(f"ViT{IMAGE}", 2, "depth"),
        rows(f"DeiT{IMAGE}", 2, "depth"),
        rows(f"DeiT{IMAGE}WithTeacher", 2, "depth"),
        rows(f"Beit{IMAGE}", 2, "depth"),
        rows(f"Data2VecVision{IMAGE}", 2, "depth"),
        rows(f"Dinov2{IMAGE}", 2, "depth", mlp_ratio=1, drop=("intermediate_size",)),
        rows(f"Dinov2WithRegisters{IMAGE}", 2, "depth", mlp_ratio=1, drop=("intermediate_size",)),
        rows(f"IJepa{IMAGE}", 2, "depth"),
        rows(f"ViTMSN{IMAGE}", 2, "depth"),
        rows(f"CLIP{IMAGE}", 2, "depth", base={"vision_config": VIT | {"projection_dim": 16}}),
        rows(f"MetaClip2{IMAGE}", 2, "depth", base={"vision_config": VIT | {"projection_dim": 16}}),
        rows(f"Siglip{IMAGE}", 2, "depth; the pooling head is not read", base={"vision_config": VIT}),
        rows(
            f"Siglip2{IMAGE}",
            2,
            "depth; the pooling head is not read",
            base={"vision_config": {key: VIT[key] for key in VIT if key != "image_size"} | {"num_patches": 16}},
            given=lambda x: patches(x),
        ),
        rows(f"Swin{IMAGE}", 4, "2 + 2", base=SWIN),
        rows(f"Swinv2{IMAGE}", 4, "2 + 2", kernels=EAGER, base=SWIN),
        rows(f"DonutSwin{IMAGE}", 4, "2 + 2", kernels=EAGER, base=SWIN),
        rows(
            f"Hiera{IMAGE}",
            2,
            "1 + 1",
            base={
                "image_size": [32, 32],
                "embed_dim": 16,
                "depths": [1, 1],
                "num_heads": [1, 2],
                "embed_dim_multiplier": 2.0,
                "patch_size": [7, 7],
                "patch_stride": [4, 4],
                "patch_padding": [3, 3],
                "num_query_pool": 1,
                "query_stride": [2, 2],
                "masked_unit_size": [4, 4],
                "masked_unit_attention": [True, False],
            },
            kernels=EAGER,
            size=32,
        ),
        rows(
            f"Cvt{IMAGE}",
            6,
            "1 + 2 + 3",
            kernels=EAGER,
            base={"embed_dim": [16, 16, 32], "num_heads": [1, 2, 2], "depth": [1, 2, 3]},
            size=64,
        ),
        rows(
            f"Levit{IMAGE}",
            8,
            "2 + 2 + 2, and 2 that downsample",
            kernels=EAGER,
            base={
                "image_size": 128,
                "hidden_sizes": [16, 32, 32],
                "num_attention_heads": [2, 2, 2],
                "depths": [2, 2, 2],
                "key_dim": [8, 8, 8],
                "mlp_ratio": [1, 1, 1],
            },
            size=128,
        ),
        rows(
            f"Levit{IMAGE}WithTeacher",
            8,
            "2 + 2 + 2, and 2 that downsample",
            kernels=EAGER,
            base={
                "image_size": 128,
                "hidden_sizes": [16, 32, 32],
                "num_attention_heads": [2, 2, 2],
                "depths": [2, 2, 2],
                "key_dim": [8, 8, 8],
                "mlp_ratio": [1, 1, 1],
            },
            size=128,
        ),
        rows(
            f"MobileViT{IMAGE}",
            9,
            "2 + 4 + 3",
            settled=True,
            kernels=EAGER,
            base={
                "image_size": 96,
                "hidden_sizes": [16, 16, 16],
                "neck_hidden_sizes": [8, 8, 8, 8, 8, 8, 16],
                "num_attention_heads": 2,
                "mlp_ratio": 1.0,
            },
            size=96,
        ),
        rows(
            f"MobileViTV2{IMAGE}",
            9,
            "2 + 4 + 3 products",
            settled=True,
            kernels=EAGER,
            base={"image_size": 128, "width_multiplier": 0.25},
            size=128,
        ),
        rows(
            f"Pvt{IMAGE}",
            4,
            "1 x 4",
            kernels=EAGER,
            base={
                "image_size": 64,
                "depths": [1, 1, 1, 1],
                "hidden_sizes": [16, 16, 16, 16],
                "num_attention_heads": [1, 1, 2, 2],
                "mlp_ratios": [1, 1, 1, 1],
            },
        ),
        rows(
            f"PvtV2{IMAGE}",
            4,
            "1 x 4",
            kernels=EAGER,
            base={
                "image_size": 128,
                "depths": [1, 1, 1, 1],
                "hidden_sizes": [16, 16, 16, 16],
                "num_attention_heads": [1, 1, 2, 2],
                "mlp_ratios": [1, 1, 1, 1],
            },
        ),
        rows(
            f"Segformer{IMAGE}",
            4,
            "1 x 4",
            base={
                "depths": [1, 1, 1, 1],
                "hidden_sizes": [16, 16, 16, 16],
                "num_attention_heads": [1, 1, 2, 2],
                "mlp_ratios": [1, 1, 1, 1],
            },
            size=128,
        ),
        rows(
            f"Perceiver{IMAGE}Learned",
            3,
            "across, 1 of its own, the decoder",
            kernels=EAGER,
            config="PerceiverConfig",
            base={
                "image_size": 32,
                "num_latents": 8,
                "d_latents": 32,
                "d_model": 64,
                "num_blocks": 1,
                "num_self_attends_per_block": 1,
                "num_self_attention_heads": 2,
                "num_cross_attention_heads": 1,
            },
            given=lambda x: {"inputs": x},
        ),
        rows(
            f"Perceiver{IMAGE}Fourier",
            3,
            "across, 1 of its own, the decoder",
            kernels=EAGER,
            config="PerceiverConfig",
            base={
                "num_latents": 8,
                "d_latents": 32,
                "d_model": 261,
                "num_blocks": 1,
                "num_self_attends_per_block": 1,
                "num_self_attention_heads": 2,
                "num_cross_attention_heads": 1,
            },
            size=224,
            given=lambda x: {"inputs": x},
        ),
        rows(
            f"Perceiver{IMAGE}ConvProcessing",
            3,
            "across, 1 of its own, the decoder",
            kernels=EAGER,
            config="PerceiverConfig",
            base={
                "num_latents": 8,
                "d_latents": 32,
                "d_model": 322,
                "num_blocks": 1,
                "num_self_attends_per_block": 1,
                "num_self_attention_heads": 2,
                "num_cross_attention_heads": 1,
            },
            size=224,
            given=lambda x: {"inputs": x},
        ),
        # towers and backbones
        rows("CLIPVisionModel", 2, "depth", config="CLIPVisionConfig"),
        rows("MetaClip2VisionModel", 2, "depth", config="MetaClip2VisionConfig"),
        rows("SiglipVisionModel", 2, "depth; the pooling head is not read", config="SiglipVisionConfig"),
        rows("AltCLIPVisionModel", 2, "depth", config="AltCLIPVisionConfig"),
        rows("ChineseCLIPVisionModel", 2, "depth", config="ChineseCLIPVisionConfig"),
        rows("CLIPSegVisionModel", 2, "depth", config="CLIPSegVisionConfig"),
        rows(
            "XCLIPVisionModel",
            4,
            "2 x (messages between frames, patches); the first messages are equal",
            config="XCLIPVisionConfig",
            without_effect=(0,),
            num_frames=2,
            given=lambda x: torch.stack([x, x / 2], 1).flatten(0, 1),
            taken=lambda out: tokens(out).unflatten(0, (-1, 2)).mean(1),
            mit_hidden_size=32,
            mit_intermediate_size=32,
            mit_num_hidden_layers=1,
            mit_num_attention_heads=2,
        ),
        rows("BlipVisionModel", 2, "depth", config="BlipVisionConfig", kernels=EAGER),
        rows("Blip2VisionModel", 2, "depth", config="Blip2VisionConfig"),
        rows("InstructBlipVisionModel", 2, "depth", config="InstructBlipVisionConfig"),
        rows("GitVisionModel", 2, "depth", config="GitVisionConfig", kernels=EAGER),
        rows("OwlViTVisionModel", 2, "depth", config="OwlViTVisionConfig"),
        rows("Owlv2VisionModel", 2, "depth", config="Owlv2VisionConfig"),
        rows(
            "GroupViTVisionModel",
            5,
            "1 + 1 + 1, and 2 before tokens are assigned to groups",
            config="GroupViTVisionConfig",
            kernels=EAGER,
            depths=[1, 1, 1],
            num_group_tokens=[8, 4, 0],
            num_output_groups=[8, 4, 0],
            size=32,
        ),
        rows("FlavaImageModel", 2, "depth", config="FlavaImageConfig", kernels=EAGER),
        rows("Aimv2VisionModel", 2, "depth; the pooling head is not read", config="Aimv2VisionConfig"),
        rows("MLCDVisionModel", 2, "depth", config="MLCDVisionConfig"),
        rows("ViTMAEModel", 2, "depth", mask_ratio=0.0, draws=True),
        rows("YolosModel", 2, "depth", image_size=[32, 32], size=32),
        rows("ViTModel", 2, "depth"),
        rows("PixioModel", 2, "depth", config="PixioConfig"),
        rows("DINOv3ViTModel", 2, "depth", config="DINOv3ViTConfig"),
        rows(
            "DINOv3ConvNextModel",
            0,
            "no softmax",
            config="DINOv3ConvNextConfig",
            kernels=EAGER,
            base={"hidden_sizes": [16, 16, 16, 16], "depths": [1, 1, 1, 1]},
        ),
        rows("Dinov2Backbone", 2, "depth", mlp_ratio=1, drop=("intermediate_size",)),
        rows("BeitBackbone", 2, "depth", out_features=["stage2"]),
        rows("VitDetModel", 2, "depth", config="VitDetConfig", drop=("intermediate_size",), kernels=EAGER),
        rows(
            "VitPoseBackbone",
            2,
            "depth",
            config="VitPoseBackboneConfig",
            image_size=[32, 32],
            patch_size=[8, 8],
            size=32,
        ),
        rows(
            "MaskFormerSwinBackbone",
            4,
            "2 + 2",
            kernels=EAGER,
            config="MaskFormerSwinConfig",
            base=SWIN,
            out_features=["stage2"],
        ),
        rows(
            "Swin2SRModel",
            2,
            "1 + 1",
            config="Swin2SRConfig",
            kernels=EAGER,
            base={
                "image_size": 32,
                "patch_size": 1,
                "embed_dim": 16,
                "depths": [1, 1],
                "num_heads": [2, 2],
                "window_size": 4,
                "mlp_ratio": 1.0,
            },
        ),
        rows(
            "GLPNModel",
            4,
            "1 x 4",
            config="GLPNConfig",
            kernels=EAGER,
            base={
                "depths": [1, 1, 1, 1],
                "hidden_sizes": [16, 16, 16, 16],
                "num_attention_heads": [1, 1, 2, 2],
                "mlp_ratios": [1, 1, 1, 1],
            },
            size=128,
        ),
        rows("DPTModel", 2, "depth", config="DPTConfig", is_hybrid=False, backbone_out_indices=[0, 1, 1, 1]),
        rows(
            "VideoMAEModel",
            2,
            "depth",
            config="VideoMAEConfig",
            num_frames=2,
            tubelet_size=2,
            given=lambda x: x[:, None].expand(-1, 2, -1, -1, -1),
        ),
        rows(
            "TimesformerModel",
            4,
            "2 x (time, space)",
            config="TimesformerConfig",
            kernels=EAGER,
            num_frames=2,
            given=lambda x: torch.stack([x, x / 2], 1),
        ),
        rows(
            "VivitModel",
            2,
            "depth",
            config="VivitConfig",
            num_frames=2,
            tubelet_size=[2, 8, 8],
            drop=("patch_size",),
            given=lambda x: x[:, None].expand(-1, 2, -1, -1, -1),
        ),
        rows(
            "SamVisionModel",
            2,
            "depth",
            config="SamVisionConfig",
            base={
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "image_size": 64,
                "patch_size": 8,
                "mlp_dim": 32,
                "output_channels": 16,
                "window_size": 4,
                "global_attn_indexes": [1],
                "num_pos_feats": 16,
            },
        ),
        rows(
            "Sam2VisionModel",
            5,
            "1 + 1 + 1 + 2",
            config="Sam2VisionConfig",
            base={
                "backbone_config": {
                    "model_type": "sam2_hiera_det_model",
                    "hidden_size": 16,
                    "num_attention_heads": 1,
                    "blocks_per_stage": [1, 1, 1, 2],
                    "embed_dim_per_stage": [16, 32, 64, 128],
                    "num_attention_heads_per_stage": [1, 2, 2, 2],
                    "window_size_per_stage": [4, 4, 4, 4],
                    "global_attention_blocks": [4],
                    "image_size": [64, 64],
                    "window_positional_embedding_background_size": [4, 4],
                },
                "backbone_channel_list": [128, 64, 32, 16],
                "fpn_hidden_size": 16,
                "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
            },
            size=64,
        ),
        rows(
            "InternVLVisionModel",
            2,
            "depth",
            config="InternVLVisionConfig",
            image_size=[32, 32],
            patch_size=[8, 8],
            size=32,
        ),
        rows("JanusVisionModel", 2, "depth", config="JanusVisionConfig", mlp_ratio=1.0, drop=("intermediate_size",)),
        rows("Idefics3VisionTransformer", 2, "depth", config="Idefics3VisionConfig"),
        rows("SmolVLMVisionTransformer", 2, "depth", config="SmolVLMVisionConfig"),
        rows(
            "PixtralVisionModel",
            2,
            "depth",
            config="PixtralVisionConfig",
            head_dim=16,
            mixes_batch=True,
            taken=lambda out: out.last_hidden_state.reshape(-1, 16, 32).mean(1)[:, :10],
        ),
        rows(
            "MllamaVisionModel",
            3,
            "2 + 1 global",
            config="MllamaVisionConfig",
            kernels=BOTH,
            base={
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_global_layers": 1,
                "attention_heads": 2,
                "intermediate_size": 32,
                "vision_output_dim": 64,
                "image_size": 32,
                "patch_size": 8,
                "max_num_tiles": 1,
                "intermediate_layers_indices": [0],
                "supported_aspect_ratios": [[1, 1]],
            },
            given=lambda x: {
                "pixel_values": x[:, None, None],
                "aspect_ratio_ids": torch.ones(len(x), 1, dtype=torch.long),
                "aspect_ratio_mask": torch.ones(len(x), 1, 1, dtype=torch.long),
            },
            taken=lambda out: out.last_hidden_state.flatten(1, -2).mean(1)[:, :10],
        ),
        rows(
            "Llama4VisionModel",
            2,
            "depth",
            config="Llama4VisionConfig",
            pixel_shuffle_ratio=0.5,
            intermediate_size=128,
            vision_output_dim=32,
            projector_input_dim=32,
            projector_output_dim=32,
        ),
        rows(
            "Florence2VisionBackbone",
            4,
            "(windows + channels) of two stages",
            config="Florence2VisionConfig",
            base={
                "embed_dim": [16, 32],
                "depths": [1, 1],
                "num_heads": [2, 2],
                "num_groups": [2, 2],
                "patch_size": [7, 3],
                "patch_stride": [4, 2],
                "patch_padding": [3, 1],
                "patch_prenorm": [False, True],
                "window_size": 4,
                "projection_dim": 32,
            },
            size=64,
        ),
        rows("Tipsv2VisionModel", 2, "depth", config="Tipsv2VisionConfig"),
        rows("RadioModel", 2, "depth", config="RadioConfig"),
        rows(
            "VJEPA2Model",
            2,
            "depth of the encoder",
            config="VJEPA2Config",
            crop_size=32,
            frames_per_clip=2,
            tubelet_size=2,
            mlp_ratio=1.0,
            pred_hidden_size=32,
            pred_num_attention_heads=2,
            pred_num_hidden_layers=1,
            pred_mlp_ratio=1.0,
            drop=("intermediate_size", "image_size"),
            given=lambda x: {"pixel_values_videos": x[:, None].expand(-1, 2, -1, -1, -1), "skip_predictor": True},
        ),
        rows(
            "LwDetrViTBackbone",
            2,
            "depth",
            config="LwDetrViTConfig",
            num_windows=4,
            window_block_indices=[0],
            out_features=["stage2"],
            drop=("intermediate_size",),
            mlp_ratio=1,
        ),
        rows(
            "RfDetrDinov2Backbone",
            2,
            "depth",
            config="RfDetrDinov2Config",
            num_windows=1,
            out_features=["stage2"],
            drop=("intermediate_size",),
            mlp_ratio=1,
        ),
        rows(
            "DetrModel",
            5,
            "1 of the encoder, 2 x (own, across) of the decoder, whose first own one weighs equal values",
            config="DetrConfig",
            kernels=EAGER,
            without_effect=(1,),
            base=DETR,
            size=64,
        ),
        rows(
            "SamHQVisionModel",
            2,
            "depth",
            config="SamHQVisionConfig",
            base={
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "image_size": 64,
                "patch_size": 8,
                "mlp_dim": 32,
                "output_channels": 16,
                "window_size": 4,
                "global_attn_indexes": [1],
                "num_pos_feats": 16,
            },
        ),
        rows(
            "MgpstrModel",
            2,
            "depth",
            config="MgpstrConfig",
            kernels=EAGER,
            mlp_ratio=1.0,
            image_size=[32, 32],
            patch_size=[8, 8],
            size=32,
            drop=("intermediate_size",),
        ),
        rows("Sapiens2Backbone", 2, "depth", config="Sapiens2Config"),
        rows("SwinBackbone", 4, "2 + 2", config="SwinConfig", base=SWIN),
        rows(
            "PvtV2Backbone",
            4,
            "1 x 4",
            config="PvtV2Config",
            kernels=EAGER,
            base={
                "image_size": 128,
                "depths": [1, 1, 1, 1],
                "hidden_sizes": [16, 16, 16, 16],
                "num_attention_heads": [1, 1, 2, 2],
                "mlp_ratios": [1, 1, 1, 1],
            },
        ),
        rows(
            "ConditionalDetrModel",
            5,
            "1 of the encoder, 2 x (own, across) of the decoder, whose first own one weighs equal values",
            config="ConditionalDetrConfig",
            kernels=EAGER,
            without_effect=(1,),
            base=DETR,
            size=64,
        ),
        rows(
            "DeformableDetrModel",
            5,
            "1 of the encoder, 2 x (own, across) of the decoder",
            config="DeformableDetrConfig",
            kernels=EAGER,
            without_effect=(),
            base=DETR | {"num_feature_levels": 1},
            size=64,
        ),
        rows(
            "TableTransformerModel",
            5,
            "1 of the encoder, 2 x (own, across) of the decoder, whose first own one weighs equal values",
            config="TableTransformerConfig",
            kernels=EAGER,
            without_effect=(1,),
            mixes_batch=True,
            base=DETR,
            size=64,
        ),
    )
    for row in group
)


def patches(x: Tensor) -> dict[str, Tensor]:
    """Images as the flat patches of eight pixels that SigLIP 2 takes."""
    flat = x.unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 4, 5, 1).flatten(1, 2).flatten(2)
    count = flat.shape[1]
    side = int(count**0.5)
    return {
        "pixel_values": flat,
        "pixel_attention_mask": torch.ones(len(x), count, dtype=torch.long),
        "spatial_shapes": torch.full((len(x), 2), side),
    }


# What is left out, and why.
LEFT_OUT = (
    ("Dinat", "its neighbourhoods need the library natten, which has no build for this machine"),
    ("ImageGPT", "takes numbers of colours, not pixels"),
    ("ShieldGemma2", "a language model that answers yes or no"),
    ("TimmWrapper", "a model of timm, which has rows of its own"),
)
