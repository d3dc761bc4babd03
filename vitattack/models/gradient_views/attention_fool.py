"""Attention-Fool: a loss on the scores before the softmax, which draws all queries to one key."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from vitattack.core.errors import UsageError
from vitattack.models.attention.attention_map import AttentionLayer, AttentionMap
from vitattack.models.attention.sample_axes import with_sample_axes
from vitattack.models.gradient_views.changed import Change, Forward, Images
from vitattack.models.gradient_views.weights_tap import WeightsTap, found_layers, readable_layers, softmax
from vitattack.models.victim import Victim


def drawn_queries(scores: Tensor) -> Tensor:
    """(..., heads) of (..., heads, queries, keys): what the key that draws most gets from a query on average.

    Scores are in units of their root mean square, so that larger queries and keys gain nothing.
    """
    size = scores.square().mean((-2, -1), keepdim=True).sqrt().clamp_min(1e-12)
    return (scores / size).mean(-2).amax(-1)


class _WithLoss(Function):
    """Logits, with the gradient of another loss of each image added where one of their own arrives."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, loss: Tensor, weight: float) -> Tensor:
        ctx.weight = weight
        return logits.view_as(logits)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        active = grads[0].flatten(1).any(1).to(grads[0].dtype)
        return grads[0], ctx.weight * active, None


@dataclass(frozen=True)
class AttentionFool(Change):
    """The loss of the inner attack, and a weighted loss on attention scores: a soft maximum over heads and layers."""

    weight: float = 1.0
    layers: AttentionMap | None = field(default=None, compare=False, repr=False)
    attention = True

    def __post_init__(self) -> None:
        if not 0 < self.weight <= 1000:
            raise UsageError("attention_fool takes a weight above 0 and at most 1000")

    def prepared(self, victim: Victim, images: Images) -> AttentionFool:
        layers = with_sample_axes(readable_layers(victim, "attention_fool"), victim)
        unknown = next((layer.name for layer in layers.layers if layer.samples is None), None)
        if unknown is not None:
            raise UsageError(f"where the images lie in the scores of '{unknown}' is not known: use pna or tgr")
        return replace(self, layers=layers)

    def forward(self, victim: Victim, forward: Forward, x: Tensor) -> Tensor:
        layers = found_layers(self.layers)
        losses: list[Tensor] = []

        def look(layer: AttentionLayer, scores: Tensor) -> Tensor:
            losses.append(of_layer(layer, scores, len(x)))
            return softmax(scores)

        with WeightsTap(layers, look):
            logits = forward(x)
        added: Tensor = _WithLoss.apply(logits, torch.stack(losses).logsumexp(0), self.weight)
        return added


def of_layer(layer: AttentionLayer, scores: Tensor, images: int) -> Tensor:
    """(B,) the soft maximum over the heads, and windows if any, of what their most attractive keys draw."""
    assert layer.samples is not None
    axis, inner = layer.samples
    drawn = drawn_queries(scores.masked_fill(scores == -torch.inf, 0.0)).movedim(axis, 0)
    by_image = drawn.reshape(-1, images, inner, *drawn.shape[1:]).movedim(1, 0)
    return by_image.flatten(1).logsumexp(1)
