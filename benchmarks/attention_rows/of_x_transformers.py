"""x-transformers of Phil Wang (lucidrains): an image classifier in several of its ways to attend."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from attention_rows.row import Row

LIBRARY = "x-transformers"
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "flash": {"attn_flash": True},
    "talking heads": {"attn_pre_talking_heads": True, "attn_post_talking_heads": True},
    "cosine similarity": {"attn_qk_norm": True},
    "sparse top-k": {"attn_sparse_topk": 4},
    "memory keys and values": {"attn_num_mem_kv": 3},
    "off by one": {"attn_add_zero_kv": True},
    "gated values": {"attn_gate_values": True},
    "gated heads": {"attn_head_scale": True},
    "one head of keys": {"attn_kv_heads": 1},
    "soft clamp": {"attn_softclamp_logits": True},
    "residual scores": {"residual_attn": True},
    "relative positions": {"rel_pos_bias": True},
    "alibi": {"alibi_pos_bias": True},
    "rotary positions": {"rotary_pos_emb": True},
    "macaron": {"macaron": True},
    "sandwich norm": {"sandwich_norm": True},
    "hard": {"attn_hard": True},
}


def build(way: dict[str, Any]) -> nn.Module:
    from x_transformers import Encoder, ViTransformerWrapper

    layers = Encoder(dim=32, depth=2, heads=2, attn_dim_head=16, **way)
    model: nn.Module = ViTransformerWrapper(image_size=32, patch_size=8, num_classes=10, attn_layers=layers)
    return model


ROWS = tuple(Row(LIBRARY, name, partial(build, way), 2, "depth") for name, way in WAYS.items())
