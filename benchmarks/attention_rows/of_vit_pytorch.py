"""vit-pytorch of Phil Wang (lucidrains): every classifier of it, small, with its softmaxes counted by hand."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn

from attention_rows.row import Row, Taken

LIBRARY = "vit-pytorch"
FLEX = "flex_attention has no backward on a CPU"
SMALL: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "num_classes": 10,
    "dim": 32,
    "depth": 2,
    "heads": 2,
    "mlp_dim": 32,
    "dim_head": 16,
}
VIDEO: dict[str, Any] = {
    "image_size": 32,
    "image_patch_size": 8,
    "frames": 4,
    "frame_patch_size": 2,
    "num_classes": 10,
    "dim": 32,
    "heads": 2,
    "mlp_dim": 32,
    "dim_head": 16,
}


def frames(x: Tensor) -> Tensor:
    """A film of four frames, the image ever darker."""
    return torch.stack([x * (1 - 0.2 * n) for n in range(4)], 2)


def series(x: Tensor) -> Tensor:
    return x.flatten(2)[..., :256]


def made(module: str, cls: str, given: Any = None, taken: Any = None, **settings: Any) -> Any:
    def build() -> nn.Module:
        model: nn.Module = getattr(importlib.import_module(f"vit_pytorch.{module}"), cls)(**settings)
        return model if given is None and taken is None else Taken(model, given, taken)

    return build


def small(
    module: str, cls: str, layers: int, why: str = "depth", *, given: Any = None, taken: Any = None, **more: Any
) -> Row:
    known = {
        key: more.pop(key)
        for key in ("ignored", "mixes_batch", "size", "no_gradient", "draws", "unseen")
        if key in more
    }
    drop = more.pop("drop", ())
    settings = {key: value for key, value in (SMALL | more).items() if key not in drop}
    return Row(LIBRARY, f"{module}.{cls}", made(module, cls, given, taken, **settings), layers, why, **known)


def own(module: str, cls: str, layers: int, why: str, *, given: Any = None, taken: Any = None, **settings: Any) -> Row:
    known = {
        key: settings.pop(key)
        for key in ("ignored", "mixes_batch", "size", "no_gradient", "draws", "unseen")
        if key in settings
    }
    return Row(LIBRARY, f"{module}.{cls}", made(module, cls, given, taken, **settings), layers, why, **known)


def efficient() -> nn.Module:
    from vit_pytorch.efficient import ViT
    from vit_pytorch.vit import Transformer

    return ViT(image_size=32, patch_size=8, num_classes=10, dim=32, transformer=Transformer(32, 2, 2, 16, 32))


def distillable() -> nn.Module:
    from vit_pytorch.distill import DistillableViT

    return DistillableViT(**SMALL)


def adapter() -> nn.Module:
    from vit_pytorch.learnable_memory_vit import Adapter, ViT

    return Adapter(vit=ViT(**SMALL), num_memories_per_layer=3, num_classes=10)


def vat(module: str, **more: Any) -> Any:
    def build() -> nn.Module:
        rooms = importlib.import_module(f"vit_pytorch.{module}")
        vit = rooms.ViT(**SMALL)
        return Taken(
            rooms.VAT(vit=vit, dim=32, depth=2, heads=2, dim_head=16, dim_action=4, mlp_dim=32, **more),
            given=lambda x: x[:, None],
            taken=lambda actions: actions.flatten(1)[:, :10],
        )

    return build


ROWS = (
    small("vit", "ViT", 2),
    small("simple_vit", "SimpleViT", 2),
    small("ats_vit", "ViT", 2, "depth", draws=True, max_tokens_per_depth=(12, 8)),
    small("attn_residual_with_dca_simple_vit", "SimpleViT", 4, "2 + 2 over the outputs of earlier layers"),
    small("cait", "CaiT", 3, "2 talking-heads + 1 class attention", cls_depth=1),
    own(
        "cct",
        "CCT",
        2,
        "depth; the pooling is a gate",
        ignored=1,
        img_size=32,
        embedding_dim=32,
        num_layers=2,
        num_heads=2,
        mlp_ratio=1,
        num_classes=10,
    ),
    own(
        "cct_3d",
        "CCT",
        2,
        "depth; the pooling is a gate",
        ignored=1,
        given=frames,
        img_size=32,
        num_frames=4,
        embedding_dim=32,
        num_layers=2,
        num_heads=2,
        mlp_ratio=1,
        num_classes=10,
    ),
    own(
        "cross_vit",
        "CrossViT",
        4,
        "1 + 1 of each scale, 1 + 1 across",
        image_size=48,
        size=48,
        num_classes=10,
        sm_dim=32,
        lg_dim=32,
        sm_patch_size=12,
        lg_patch_size=16,
        sm_enc_heads=2,
        sm_enc_mlp_dim=32,
        sm_enc_dim_head=16,
        lg_enc_depth=1,
        lg_enc_heads=2,
        lg_enc_mlp_dim=32,
        lg_enc_dim_head=16,
        cross_attn_depth=1,
        cross_attn_heads=2,
        cross_attn_dim_head=16,
        depth=1,
    ),
    own(
        "crossformer",
        "CrossFormer",
        4,
        "(local + global) x 2 of two stages",
        size=32,
        dim=(32, 32, 32, 32),
        depth=(1, 1, 0, 0),
        global_window_size=(4, 2, 1, 1),
        local_window_size=4,
        num_classes=10,
    ),
    own(
        "cvt",
        "CvT",
        3,
        "1 + 1 + 1",
        size=64,
        num_classes=10,
        s1_emb_dim=16,
        s1_heads=1,
        s1_depth=1,
        s2_emb_dim=32,
        s2_heads=2,
        s2_depth=1,
        s3_emb_dim=32,
        s3_heads=2,
        s3_depth=1,
    ),
    small("deepvit", "DeepViT", 2, "depth, re-attention"),
    Row(LIBRARY, "distill.DistillableViT", distillable, 2, "depth"),
    Row(LIBRARY, "efficient.ViT", efficient, 2, "depth of the transformer it was given"),
    small("jet_vit", "JetViT", 2, "depth"),
    small("jumbo_vit", "JumboViT", 2, "depth", mlp_dim=32),
    small("learnable_memory_vit", "ViT", 2),
    Row(LIBRARY, "learnable_memory_vit.Adapter", adapter, 2, "depth"),
    own(
        "levit",
        "LeViT",
        5,
        "1 + 1 + 1, and 2 that downsample",
        size=128,
        image_size=128,
        num_classes=10,
        dim=(32, 32, 32),
        depth=1,
        heads=(2, 2, 2),
        mlp_mult=2,
        dim_key=8,
        dim_value=16,
    ),
    own(
        "look_vit",
        "LookViT",
        6,
        "3 per block: both directions across and the low resolution",
        size=48,
        image_size=48,
        num_classes=10,
        dim=32,
        depth=2,
        patch_size=16,
        heads=2,
        mlp_factor=1,
        dim_head=16,
        highres_patch_size=12,
        highres_mlp_factor=1,
        cross_attn_heads=2,
        cross_attn_dim_head=16,
    ),
    own(
        "looped_vit",
        "LoopedViT",
        4,
        "1 before, 1 in a loop of 2, 1 after",
        image_size=32,
        patch_size=8,
        num_classes=10,
        dim=32,
        pre_loop_depth=1,
        num_looped_blocks=1,
        post_loop_depth=1,
        loop_depth=2,
        heads=2,
        dim_head=16,
        mlp_dim=32,
    ),
    own(
        "max_vit",
        "MaxViT",
        4,
        "(block + grid) x 2",
        size=64,
        num_classes=10,
        dim=32,
        depth=(1, 1),
        dim_head=16,
        window_size=4,
    ),
    own(
        "max_vit_with_registers",
        "MaxViT",
        4,
        "(block + grid) x 2",
        size=64,
        num_classes=10,
        dim=32,
        depth=(1, 1),
        dim_head=16,
        window_size=4,
    ),
    own(
        "mobile_vit",
        "MobileViT",
        3,
        "1 + 1 + 1",
        size=128,
        image_size=(128, 128),
        dims=[32, 32, 32],
        channels=[8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 16],
        num_classes=10,
        depths=(1, 1, 1),
    ),
    small("mp3", "ViT", 2),
    small("na_vit", "NaViT", 3, "2 + attention pooling", given=lambda x: list(x.unbind()), mixes_batch=True),
    small(
        "na_vit_nested_tensor",
        "NaViT",
        3,
        "2 + attention pooling",
        unseen="nested tensors, whose scores have no rows to read",
        given=lambda x: list(x.unbind()),
    ),
    own(
        "nest",
        "NesT",
        3,
        "1 + 1 + 1",
        image_size=32,
        patch_size=2,
        num_classes=10,
        dim=16,
        heads=2,
        num_hierarchies=3,
        block_repeats=(1, 1, 1),
        mlp_mult=1,
        dim_head=16,
    ),
    small("normalized_vit", "nViT", 2),
    small("parallel_vit", "ViT", 4, "2 branches x 2"),
    own(
        "pit",
        "PiT",
        3,
        "1 + 1 + 1",
        image_size=32,
        patch_size=4,
        num_classes=10,
        dim=32,
        depth=(1, 1, 1),
        heads=2,
        mlp_dim=32,
        dim_head=16,
    ),
    own(
        "regionvit",
        "RegionViT",
        4,
        "(regions + windows) of two stages",
        size=112,
        dim=(32, 32, 32, 32),
        depth=(1, 1, 0, 0),
        window_size=7,
        num_classes=10,
    ),
    small("rvt", "RvT", 2),
    own(
        "scalable_vit",
        "ScalableViT",
        4,
        "(scalable + windows) x 2",
        size=32,
        num_classes=10,
        dim=32,
        heads=(2, 2),
        depth=(1, 1),
        ff_expansion_factor=1,
        reduction_factor=(2, 1),
        window_size=(4, None),
        iwsa_dim_key=16,
        iwsa_dim_value=16,
        ssa_dim_key=16,
        ssa_dim_value=16,
    ),
    own(
        "sep_vit",
        "SepViT",
        4,
        "(depthwise + pointwise) of two stages",
        size=112,
        num_classes=10,
        dim=32,
        dim_head=16,
        heads=(1, 2),
        depth=(1, 1),
        window_size=7,
    ),
    small("simple_flash_attn_vit", "SimpleViT", 2, "depth, fused"),
    own("simple_flash_attn_vit_3d", "SimpleViT", 2, "depth, fused", given=frames, depth=2, **VIDEO),
    small("simple_uvit", "SimpleUViT", 2),
    own(
        "simple_vit_1d",
        "SimpleViT",
        2,
        "depth",
        given=series,
        seq_len=256,
        patch_size=16,
        num_classes=10,
        dim=32,
        depth=2,
        heads=2,
        mlp_dim=32,
        dim_head=16,
    ),
    own("simple_vit_3d", "SimpleViT", 2, "depth", given=frames, depth=2, **VIDEO),
    small("simple_vit_attn_residual", "SimpleViTAttnResidual", 6, "2 + 4 over the outputs of earlier layers"),
    small("simple_vit_orthog_residual_update", "SimpleViT", 2),
    small("simple_vit_with_fft", "SimpleViT", 2, freq_patch_size=8),
    small("simple_vit_with_hyper_connections", "SimpleViT", 2, num_residual_streams=2),
    small("simple_vit_with_patch_dropout", "SimpleViT", 2),
    small("simple_vit_with_qk_norm", "SimpleViT", 2),
    small("simple_vit_with_register_tokens", "SimpleViT", 2),
    small("simple_vit_with_relative_proj_pos_bias", "SimpleViT", 2),
    small("simple_vit_with_sparse_gating", "SimpleViTWithSparseGating", 2),
    small("simple_vit_with_specialized_cls", "SimpleViT", 2),
    small("simple_vit_with_value_residual", "SimpleViT", 2),
    own(
        "t2t",
        "T2TViT",
        4,
        "2 + 2 of the tokens",
        image_size=32,
        num_classes=10,
        dim=32,
        depth=2,
        heads=2,
        mlp_dim=32,
        dim_head=16,
        t2t_layers=((7, 4), (3, 2), (3, 2)),
    ),
    own(
        "twins_svt",
        "TwinsSVT",
        14,
        "(local + global) x 2 of three stages, 2 global ones of the last",
        size=64,
        num_classes=10,
        s1_emb_dim=16,
        s1_local_patch_size=4,
        s1_global_k=4,
        s2_emb_dim=16,
        s2_local_patch_size=4,
        s2_global_k=4,
        s3_emb_dim=16,
        s3_local_patch_size=2,
        s3_global_k=2,
        s3_depth=1,
        s4_emb_dim=16,
        s4_local_patch_size=1,
        s4_global_k=1,
        s4_depth=1,
        peg_kernel_size=3,
    ),
    Row(LIBRARY, "vat.VAT", vat("vat", vit_layer_indices=(0, 2)), 6, "2 of the images, (across + own) x 2"),
    small("vat", "ViT", 2),
    own(
        "vit_1d",
        "ViT",
        2,
        "depth",
        given=series,
        seq_len=256,
        patch_size=16,
        num_classes=10,
        dim=32,
        depth=2,
        heads=2,
        mlp_dim=32,
        dim_head=16,
    ),
    own("vit_3d", "ViT", 2, "depth", given=frames, depth=2, **VIDEO),
    small("vit_5", "ViT", 2),
    small("vit_detpool", "ViTDetPool", 2, "depth"),
    small("vit_for_small_dataset", "ViT", 2),
    own(
        "vit_nd",
        "ViTND",
        2,
        "depth",
        no_gradient=FLEX,
        ndim=2,
        input_shape=(32, 32),
        patch_size=8,
        num_classes=10,
        dim=32,
        depth=2,
        heads=2,
        mlp_dim=32,
        dim_head=16,
    ),
    own(
        "vit_nd_pope",
        "ViTND",
        2,
        "depth",
        no_gradient=FLEX,
        ndim=2,
        input_shape=(32, 32),
        patch_size=8,
        num_classes=10,
        dim=32,
        depth=2,
        heads=2,
        mlp_dim=32,
        dim_head=16,
    ),
    own(
        "vit_nd_rotary",
        "ViTND",
        2,
        "depth",
        no_gradient=FLEX,
        ndim=2,
        input_shape=(32, 32),
        patch_size=8,
        num_classes=10,
        dim=32,
        depth=2,
        heads=2,
        mlp_dim=32,
        dim_head=16,
    ),
    small("vit_with_decorr", "ViT", 2, taken=lambda out: out[0]),
    small("vit_with_keel_post_ln", "ViT", 2),
    small("vit_with_patch_dropout", "ViT", 2),
    small("vit_with_patch_merger", "ViT", 3, "2 + the merger", patch_merge_layer=1, patch_merge_num_tokens=4),
    own("vivit", "ViViT", 3, "2 in space + 1 in time", given=frames, spatial_depth=2, temporal_depth=1, **VIDEO),
    Row(
        LIBRARY,
        "vivit.ViViT plain",
        made(
            "vivit",
            "ViViT",
            frames,
            use_flash_attn=False,
            spatial_depth=2,
            temporal_depth=2,
            variant="factorized_self_attention",
            **VIDEO,
        ),
        4,
        "2 in space + 2 in time",
    ),
    own(
        "vivit_with_moss",
        "ViViT",
        3,
        "2 in space + 1 in time",
        given=frames,
        spatial_depth=2,
        temporal_depth=1,
        moss_causal=False,
        **VIDEO,
    ),
    small(
        "wwt",
        "WWT",
        4,
        "2 x (tokens, slots)",
        unseen="weights that compete over one axis are summed over the other (slot attention)",
        num_slots=4,
    ),
    small("xcit", "XCiT", 3, "2 of channels + 1 class attention", cls_depth=1),
)

# What cannot run at all, and why.
LEFT_OUT = (
    ("local_vit.LocalViT", "its own forward fails: a layer norm meets feature maps"),
    ("simple_flash_attn_vit.SimpleViT, not fused", "its own forward fails: einsum is not imported"),
    ("vaat.VAAT", "hears sounds, and needs torchaudio"),
    ("dino, es_vit, lejepa, levjepa, mae, mp3.MP3, mpp, simmim", "ways to train a model, no classifiers"),
)
