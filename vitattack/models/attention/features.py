"""Outputs of the blocks of a model, and distances between those of two models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vitattack.core.errors import UsageError
from vitattack.models.attention.attention_map import AttentionMap

Tap = Literal["block", "attention", "cls"]


def tapped_modules(layers: AttentionMap, tap: Tap) -> list[str]:
    """Return the modules whose outputs are compared: the blocks around the attention layers, or the layers."""
    names = [layer.name if tap == "attention" else layer.block for layer in layers.layers]
    return list(dict.fromkeys(names))


def block_features(
    victim: nn.Module, names: Sequence[str], tap: Tap, forward: Callable[[], Tensor]
) -> tuple[list[Tensor], Tensor]:
    """Return the outputs of the named modules during one forward, and the logits; gradients flow if enabled."""
    outputs: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            outputs[name] = output if isinstance(output, Tensor) else output[0]

        return hook

    modules = dict(victim.named_modules())
    handles = [modules[name].register_forward_hook(keep(name)) for name in names]
    try:
        logits = forward()
    finally:
        for handle in handles:
            handle.remove()
    return [_select(outputs[name], tap) for name in names], logits


def _select(feature: Tensor, tap: Tap) -> Tensor:
    return feature[:, :1] if tap == "cls" else feature


def require_comparable(one: Sequence[Tensor], two: Sequence[Tensor], images: int, name: str) -> None:
    """Refuse features whose shape depends on the forward, or that are not a row per image."""
    if any(a.shape != b.shape or len(a) != images for a, b in zip(one, two, strict=True)):
        raise UsageError(
            f"blocks of '{name}' pack images together or keep other tokens in every forward, so their features cannot be "
            "compared: search with objective=margin"
        )


def unit_distance(one: Tensor, two: Tensor) -> Tensor:
    """Return the (B,) distance of features normalised per token over channels, as in learned perceptual metrics."""
    a, b = (_tokens(feature) for feature in (one, two))
    a, b = (f / (f.norm(dim=-1, keepdim=True) + 1e-10) / f.shape[1] ** 0.5 for f in (a, b))
    return _norm(a - b)


def eq3_distance(one: Tensor, two: Tensor) -> Tensor:
    """Return (B,) Eq. 3 of the AAS paper: the norm of the difference over the product of the norms, per image."""
    return _norm(one - two) / (_norm(one) * _norm(two)).clamp_min(1e-30)


def _norm(feature: Tensor) -> Tensor:
    """Return the l2 norm per image, with a gradient of zero instead of NaN where it is zero."""
    squares = feature.flatten(1).square().sum(1)
    positive = squares > 0
    return torch.where(positive, squares.where(positive, torch.ones_like(squares)).sqrt(), torch.zeros_like(squares))


def _tokens(feature: Tensor) -> Tensor:
    """Return (B, tokens, channels), whether channels come last (ViT, Swin) or second (convolutional stages)."""
    if feature.dim() == 4 and feature.shape[2] == feature.shape[3] != feature.shape[1]:
        return feature.flatten(2).transpose(1, 2)
    return feature.flatten(1, -2) if feature.dim() > 2 else feature[:, None]
