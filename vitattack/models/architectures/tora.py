"""TORA-ViT: a frozen ViT with accuracy and robustness adapters and gates between them (Li and Xu, CVPR 2023, poster).

Only the poster is public. Inferred here are bottlenecks with GELU that add to their input, gates divided by the number of
keys and a residual path around the fusion (arguments choose other readings), and that [ACC] and [ROB] are carried as
differences to the class token: taken literally, they would pass through the adapters alone and never see the image.
A new model computes what its backbone computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from vitattack.core.errors import UsageError
from vitattack.models.architectures.tora_layers import (
    SIDES,
    Adapter,
    Forced,
    GatedFusion,
    Residual,
    Side,
    Weighing,
    one_of,
)

BACKBONE = "backbone."
Head = Literal["acc", "rob", "joint"]
Tuning = Literal["tora", "single", "head"]


class ToraLayer(nn.Module):
    """Both adapters and their fusion, run after one block."""

    def __init__(self, dim: int, width: int, weighing: Weighing, residual: Residual) -> None:
        super().__init__()
        self.acc, self.rob = Adapter(dim, width), Adapter(dim, width)
        self.fusion = GatedFusion(dim, weighing, residual)

    def forward(self, z: Tensor, carried: dict[Side, Tensor], has_class: bool) -> tuple[Tensor, dict[Side, Tensor]]:
        """The next block's input, and what [ACC] and [ROB] carry on."""
        patches = z[:, 1:] if has_class else z
        base = z[:, :1] if has_class else z.mean(1, keepdim=True)
        streams, further = {}, {}
        for side in SIDES:
            adapter = self.acc if side == "acc" else self.rob
            streams[side] = adapter(torch.cat([base + carried[side], patches], 1))
            further[side] = streams[side][:, :1] - base
        return self.fusion(z, streams["acc"], streams["rob"]), further


class ToraViT(nn.Module):
    """A ViT of timm with frozen weights, and what is trained beside it; `head` says whose prediction it gives.

    `tuning` tells the methods of the poster's Table 3 apart: `tora` has two adapters and their fusion in every block,
    `single` one adapter for both heads, `head` nothing but the two heads. The backbone's own head is kept, unused.
    """

    def __init__(
        self,
        backbone: VisionTransformer,
        *,
        head: Head = "joint",
        tuning: Tuning = "tora",
        adapter_dim: int = 48,
        gate: Weighing = "mean",
        residual: Residual = "gated",
        gates: Forced = "learned",
    ) -> None:
        super().__init__()
        for name, value, kind in (
            ("head", head, Head),
            ("tuning", tuning, Tuning),
            ("gate", gate, Weighing),
            ("residual", residual, Residual),
            ("gates", gates, Forced),
        ):
            one_of(name, value, get_args(kind))
        if adapter_dim < 1:
            raise UsageError(f"adapter_dim is the width of the adapters, at least 1, not {adapter_dim}")
        self.backbone = backbone.requires_grad_(False)
        self.head: Head = head
        self.num_classes = backbone.num_classes
        dim, depth = backbone.embed_dim, len(backbone.blocks)
        self.shared = nn.ModuleList(Adapter(dim, adapter_dim) for _ in range(depth if tuning == "single" else 0))
        self.layers = nn.ModuleList(
            ToraLayer(dim, adapter_dim, gate, residual) for _ in range(depth if tuning == "tora" else 0)
        )
        self.tokens = nn.ParameterDict(
            {side: nn.Parameter(torch.zeros(dim)) for side in (SIDES if tuning == "tora" else ())}
        )
        features = backbone.head.in_features if isinstance(backbone.head, nn.Linear) else dim
        self.heads = nn.ModuleDict({side: nn.Linear(features, self.num_classes) for side in SIDES})
        self.force(gates)

    def force(self, gates: Forced) -> None:
        """Give all weight to one adapter, or let the gates decide again."""
        self.forced: Forced = gates
        for module in self.modules():
            if isinstance(module, GatedFusion):
                module.gate.forced = gates

    def forward(self, x: Tensor) -> Tensor:
        features = self.features(x)
        if self.head != "joint":
            logits: Tensor = self.heads[self.head](features[self.head])
            return logits
        # One linear map of both features: the mean of the two heads.
        heads: list[Any] = [self.heads[side] for side in SIDES]
        weight, bias = torch.cat([h.weight for h in heads], 1) / 2, (heads[0].bias + heads[1].bias) / 2
        return F.linear(torch.cat([features[side] for side in SIDES], 1), weight, bias)

    def features(self, x: Tensor) -> dict[Side, Tensor]:
        """What each head classifies, (B, D)."""
        net = self.backbone
        x = net.norm_pre(net.patch_drop(net._pos_embed(net.patch_embed(x))))
        has_class = net.cls_token is not None
        carried: dict[Side, Tensor] = {
            side: self.tokens[side].expand(len(x), 1, -1) for side in SIDES if side in self.tokens
        }
        for number, block in enumerate(net.blocks):
            x = block(x)
            if len(self.shared):
                x = self.shared[number](x)
            elif len(self.layers):
                x, carried = self.layers[number](x, carried, has_class)
        return {side: self._pooled(x, carried.get(side), has_class) for side in SIDES}

    def _pooled(self, x: Tensor, token: Tensor | None, has_class: bool) -> Tensor:
        if token is not None:
            x = torch.cat([x[:, :1] + token, x[:, 1:]], 1) if has_class else x + token
        pooled: Tensor = self.backbone.forward_head(self.backbone.norm(x), pre_logits=True)
        return pooled

    @property
    def patch_embed(self) -> nn.Module:
        """The patch embedding of the backbone, which states the size of the images."""
        embed: nn.Module = self.backbone.patch_embed
        return embed

    @property
    def default_cfg(self) -> Any:
        """The backbone's, for the size of its images."""
        return getattr(self.backbone, "default_cfg", {})


def tora(build: Callable[[str, Mapping[str, Any]], nn.Module], arch: str, **arguments: Any) -> nn.Module:
    """Build TORA-ViT around one of timm's plain ViTs, which `build` makes from what is no argument of TORA-ViT's own."""
    own = {name: arguments.pop(name) for name in OWN_ARGUMENTS & arguments.keys()}
    backbone = build(arch, arguments)
    if type(backbone) is not VisionTransformer or backbone.num_classes < 1:
        raise UsageError(
            f"TORA-ViT takes plain ViTs with one head, such as tora:vit_base_patch16_224: '{arch}' is none of them"
        )
    return ToraViT(backbone, **own)


OWN_ARGUMENTS = {"head", "tuning", "adapter_dim", "gate", "residual", "gates"}
