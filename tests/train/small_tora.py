"""A TORA-ViT of two blocks around a random backbone, and its training on 112 embedded images."""

from __future__ import annotations

from typing import Any

SIZES = "{embed_dim: 16, depth: 2, num_heads: 2, adapter_dim: 4}"
CHANGES = (
    "data=cifar10-calib",
    "init=null",
    "init_adapter=[]",
    "validation=16",
    "probe=8",
    "batch_size=32",
    "epochs=1",
    "then.epochs=1",
    "precision=fp32",
)
OPTIONS: dict[str, Any] = {"device": "cpu", "threads": 1}


def changes(*more: str, own: str = "") -> list[str]:
    """Words that make a tiny recipe of TORA-ViT quick; `own` are arguments of the architecture."""
    return [*CHANGES, f"arch_kwargs={SIZES[:-1]}{own}}}", *more]
