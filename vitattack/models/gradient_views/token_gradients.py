"""TGR: gradients of tokens that stand out are left out, and those of attention and MLPs are made smaller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from vitattack.core.errors import UsageError
from vitattack.models.attention.attention_map import AttentionLayer, AttentionMap, Place
from vitattack.models.blocks.convolutional import blocks_that_add
from vitattack.models.blocks.residual import Kind, Removal, Residuals, attention_functions, followed
from vitattack.models.gradient_views.changed import Change, Forward, Images
from vitattack.models.gradient_views.weights_tap import WeightsTap, found_layers, readable_layers, softmax
from vitattack.models.victim import Victim

PROJECTIONS = {"linear", "conv1d", "conv2d"}


def without_extremes(grad: Tensor, axis: int) -> Tensor:
    """Set the largest and the smallest entry along an axis to zero."""
    for extreme in (grad.argmax(axis, keepdim=True), grad.argmin(axis, keepdim=True)):
        grad = grad.scatter(axis, extreme, 0.0)
    return grad


def without_extreme_tokens(grad: Tensor, *, channels: int) -> Tensor:
    """Of every channel, the same along all positions of an image: those between the first axis and the channels."""
    moved = grad.movedim(channels, -1)
    flat = moved.reshape(len(moved), -1, moved.shape[-1])
    return without_extremes(flat, 1).view_as(moved).movedim(-1, channels)


def without_extreme_pairs(grad: Tensor) -> Tensor:
    """Of every map of queries and keys, the rows and columns of the largest and of the smallest entry set to zero.

    Of a single query only the columns go, since its row is all there is.
    """
    rows, columns = grad.shape[-2:]
    kept = torch.ones_like(grad)
    flat = grad.flatten(-2)
    for extreme in (flat.argmax(-1), flat.argmin(-1)):
        row = torch.arange(rows, device=grad.device) == (extreme // columns)[..., None]
        column = torch.arange(columns, device=grad.device) == (extreme % columns)[..., None]
        kept = kept * ~column[..., None, :]
        if rows > 1:
            kept = kept * ~row[..., None]
    return grad * kept


class _TokensTap(WeightsTap):
    """Also changes gradients of the projections that a module makes before its softmax."""

    def __init__(self, layers: AttentionMap, weights: float, projections: float) -> None:
        super().__init__(layers, self._weights)
        self.of_weights, self.of_projections = weights, projections
        self.heads = {layer.name: layer.heads for layer in layers.layers}
        self.open: list[str] = []  # attention modules that run, their softmax yet to come

    def _weights(self, layer: AttentionLayer, scores: Tensor) -> Tensor:
        p = softmax(scores)
        if p.requires_grad:
            p.register_hook(lambda grad: without_extreme_pairs(grad) * self.of_weights)  # type: ignore[no-untyped-call]
        return p

    def softmax(self, call: int, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        number = self.layers.calls[call % len(self.layers.calls)] if self.layers.calls else None
        if number is not None and self.layers.layers[number].name in self.open:
            self.open.remove(self.layers.layers[number].name)
        return super().softmax(call, func, name, args, kwargs)

    def other(self, func: Any, name: str, args: Any, kwargs: Any, out: Any, place: Place | None) -> None:
        super().other(func, name, args, kwargs, out, place)
        if not (self.open and name in PROJECTIONS and isinstance(out, Tensor) and out.requires_grad and out.dim() > 2):
            return
        channels = -1 if name == "linear" else 1
        if out.shape[channels] == self.heads[self.open[-1]]:  # it mixes the scores of heads
            return
        # nn.MultiheadAttention puts tokens first, which is seen from inside alone
        tokens_first = self.inside > 0

        def changed(grad: Tensor) -> Tensor:
            batch_first = grad.transpose(0, 1) if tokens_first else grad
            changed = without_extreme_tokens(batch_first, channels=channels) * self.of_projections
            return changed.transpose(0, 1) if tokens_first else changed

        out.register_hook(changed)  # type: ignore[no-untyped-call]

    @contextmanager
    def watching(self, victim: Victim) -> Iterator[None]:
        """Know when the attention modules run."""
        modules = dict(victim.named_modules())
        handles = []
        for name in {layer.name for layer in self.layers.layers}:
            handles.append(modules[name].register_forward_pre_hook(self._enter(name)))
            handles.append(modules[name].register_forward_hook(self._leave(name)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, name: str) -> Any:
        return lambda module, args: self.open.append(name)

    def _leave(self, name: str) -> Any:
        def leave(module: Any, args: Any, out: Any) -> None:
            if name in self.open:
                self.open.remove(name)

        return leave


class _Mlps(Residuals):
    """Changes gradients of what MLPs add."""

    def __init__(self, attention: set[str], factor: float) -> None:
        super().__init__(attention=attention)
        self.factor = factor

    def branch(self, place: Removal, kind: Kind, branch: Tensor) -> None:
        if kind != "mlp" or not branch.requires_grad:
            return
        # maps of convolutional stages have their channels second
        channels = 1 if branch.dim() == 4 and branch.shape[2] == branch.shape[3] != branch.shape[1] else -1
        branch.register_hook(  # type: ignore[no-untyped-call]
            lambda grad: without_extreme_tokens(grad, channels=channels) * self.factor
        )


@dataclass(frozen=True)
class TokenGradientRegularised(Change):
    """Extreme token gradients are left out of attention weights, of queries, keys and values, and of MLPs."""

    weights: float = 0.25
    projections: float = 0.75
    mlp: float = 0.5
    layers: AttentionMap | None = field(default=None, compare=False, repr=False)
    blocks: tuple[str, ...] = field(default=(), compare=False, repr=False)
    attention = True

    def __post_init__(self) -> None:
        if not all(0 <= factor <= 1 for factor in (self.weights, self.projections, self.mlp)):
            raise UsageError("tgr multiplies gradients by factors from 0 to 1")

    def prepared(self, victim: Victim, images: Images) -> TokenGradientRegularised:
        layers = readable_layers(victim, "tgr")
        return replace(self, layers=layers, blocks=tuple(block.name for block in blocks_that_add(victim, layers)))

    def forward(self, victim: Victim, forward: Forward, x: Tensor) -> Tensor:
        layers = found_layers(self.layers)
        tap = _TokensTap(layers, self.weights, self.projections)
        mlps = _Mlps(attention_functions(layers), self.mlp)
        with followed(victim, self.blocks, mlps), tap.watching(victim), tap:
            return forward(x)
