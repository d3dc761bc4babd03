"""Arguments of an architecture read off the shapes of a checkpoint: patch, width, depth, classes, size."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import torch

from vitattack.core.errors import UsageError
from vitattack.models.architectures.build import build_architecture

Shapes = Mapping[str, tuple[int, ...]]
HEADS = ("head.weight", "head.fc.weight", "classifier.weight", "fc.weight", "heads.head.weight", "head.l.weight")


def shapes_of(arch: str, kwargs: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of an architecture's tensors, which costs no memory for them."""
    with torch.device("meta"):
        model = build_architecture(arch, kwargs)
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def fitting_arguments(arch: str, kwargs: Mapping[str, Any], state: Shapes) -> dict[str, Any] | None:
    """Arguments in addition to the given ones under which the architecture has exactly these tensors; None if none are found."""
    own, theirs = _read(shapes_of(arch, kwargs)), _read(state)
    changed = {key: value for key, value in theirs.items() if own.get(key) != value}
    attempts = [changed]
    if "embed_dim" in changed and "num_heads" not in changed:  # the width has to be a multiple of the number of heads
        attempts += [{**changed, "num_heads": max(1, changed["embed_dim"] // 64)}]
    if "window_size" in changed:  # small images shrink the windows of late stages
        attempts += [{**changed, "img_size": 32 * changed["window_size"]}]
    for attempt in attempts:
        try:
            if attempt and shapes_of(arch, {**kwargs, **attempt}) == dict(state):
                return attempt
        except (UsageError, RuntimeError, AssertionError, ValueError, TypeError):
            continue
    return None


def _read(shapes: Shapes) -> dict[str, Any]:
    """What the shapes tell, for plain ViTs, TORA-ViTs and Swin transformers; of others the number of classes."""
    read: dict[str, Any] = {}
    if "heads.acc.weight" in shapes:  # TORA-ViT: the arguments of its backbone, and its own
        adapter = next((shapes[name] for name in shapes if re.match(r"(layers|shared)\.0\..*down\.weight", name)), None)
        tuning = "head" if adapter is None else "single" if "shared.0.down.weight" in shapes else "tora"
        inner = {
            name.removeprefix("backbone."): shape for name, shape in shapes.items() if name.startswith("backbone.")
        }
        return _read(inner) | {"tuning": tuning} | ({"adapter_dim": adapter[0]} if adapter else {})
    head = next((shapes[name] for name in HEADS if name in shapes), None)
    if head is not None:
        read["num_classes"] = head[0]
    patch = shapes.get("patch_embed.proj.weight")
    if patch is None or len(patch) != 4:
        return read
    read |= {"embed_dim": patch[0], "patch_size": patch[-1]}
    if patch[1] != 3:
        read["in_chans"] = patch[1]
    swin = _swin(shapes)
    return read | (swin or _vit(shapes, patch))


def _vit(shapes: Shapes, patch: tuple[int, ...]) -> dict[str, Any]:
    blocks = {int(match[1]) for name in shapes if (match := re.match(r"blocks\.(\d+)\.", name))}
    read: dict[str, Any] = {"depth": len(blocks)} if blocks else {}
    positions = shapes.get("pos_embed")
    if positions is not None and len(positions) == 3:
        extra = ("cls_token" in shapes) + ("dist_token" in shapes) + shapes.get("reg_token", (0, 0))[1]
        side = math.isqrt(max(positions[1] - extra, 0))
        if side * side == positions[1] - extra:
            read["img_size"] = side * patch[-1]
    hidden = shapes.get("blocks.0.mlp.fc1.weight")
    if hidden is not None:
        read["mlp_ratio"] = hidden[0] / patch[0]
    if "reg_token" in shapes:
        read["reg_tokens"] = shapes["reg_token"][1]
    if "blocks.0.ls1.gamma" in shapes:
        read["init_values"] = 1e-5
    read["qkv_bias"] = "blocks.0.attn.qkv.bias" in shapes
    return read


def _swin(shapes: Shapes) -> dict[str, Any]:
    found = [match for name in shapes if (match := re.match(r"layers\.(\d+)\.blocks\.(\d+)\.", name))]
    table = shapes.get("layers.0.blocks.0.attn.relative_position_bias_table")
    if not found or table is None:
        return {}
    stages = 1 + max(int(match[1]) for match in found)
    depths = [1 + max((int(m[2]) for m in found if int(m[1]) == stage), default=-1) for stage in range(stages)]
    heads = [
        shapes.get(f"layers.{stage}.blocks.0.attn.relative_position_bias_table", (0, 0))[1] for stage in range(stages)
    ]
    return {"depths": depths, "num_heads": heads, "window_size": (math.isqrt(table[0]) + 1) // 2}
