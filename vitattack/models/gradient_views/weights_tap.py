"""Taps that change the gradient of attention and leave its values as they are, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.autograd import Function

from vitattack.core.errors import UsageError
from vitattack.models.attention.attention_map import AttentionLayer, AttentionMap
from vitattack.models.attention.flex import Flex
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.attention.sdpa import Sdpa
from vitattack.models.attention.tap import AttentionTap
from vitattack.models.gradients.with_gradient_of import with_gradient_of
from vitattack.models.victim import Victim


class _Scaled(Function):
    """The identity, whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.factor * grads[0], None


def with_scaled_gradient(x: Tensor, factor: float) -> Tensor:
    """Return the same values, passing a share of the gradient on."""
    if factor == 0:
        return x.detach()
    scaled: Tensor = _Scaled.apply(x, factor)
    return scaled


class ScoresTap(AttentionTap):
    """A tap that passes a share of the gradient of attention on to its scores; that of the values is as it was."""

    def __init__(self, layers: AttentionMap, share: float) -> None:
        super().__init__(layers)
        self.share = share

    def _fused(self, layer: AttentionLayer, func: Any, args: Any, kwargs: Any) -> Any:
        call = Sdpa.of(args, kwargs)
        call.q, call.k = with_scaled_gradient(call.q, self.share), with_scaled_gradient(call.k, self.share)
        if call.mask is not None and call.mask.requires_grad:
            call.mask = with_scaled_gradient(call.mask, self.share)
        return call.run(func)

    def _flex(self, layer: AttentionLayer, func: Any, args: Any, kwargs: Any) -> Any:
        call = Flex.of(args, kwargs)
        call.q, call.k = with_scaled_gradient(call.q, self.share), with_scaled_gradient(call.k, self.share)
        return call.run(func)

    def _plain(self, layer: AttentionLayer, func: Any, z: Tensor, *rest: Any) -> Any:
        return super()._plain(layer, func, with_scaled_gradient(z, self.share), *rest)

    def _exponential(self, layer: AttentionLayer, by_hand: Any, func: Any, name: str, z: Tensor, *rest: Any) -> Any:
        if name.endswith("_"):  # the model goes on with what it gave
            return z.copy_(func(with_scaled_gradient(z.clone(), self.share)))
        return func(with_scaled_gradient(z, self.share))


def softmax(scores: Tensor) -> Tensor:
    """A softmax over the last axis that other taps do not take for one of the model's."""
    p = (scores - scores.detach().amax(-1, keepdim=True)).exp()
    return p / p.sum(-1, keepdim=True)


class WeightsTap(AttentionTap):
    """A tap whose attention weights have the gradient of `changed(layer, scores)`, the values those of the model."""

    def __init__(self, layers: AttentionMap, changed: Callable[[AttentionLayer, Tensor], Tensor]) -> None:
        super().__init__(layers, replacement=changed)
        self.changed = changed

    def _fused(self, layer: AttentionLayer, func: Any, args: Any, kwargs: Any) -> Any:
        call = Sdpa.of(args, kwargs)
        value = call.run(func)
        weights = self.changed(layer, call.scores())  # which repeat the values of grouped queries
        return with_gradient_of(value, weights @ call.v)

    def _flex(self, layer: AttentionLayer, func: Any, args: Any, kwargs: Any) -> Any:
        call = Flex.of(args, kwargs)
        out, *rest = call.run(func)
        return with_gradient_of(out, call.explicit(self.changed(layer, call.scores()))[0]), *rest

    def _plain(self, layer: AttentionLayer, func: Any, z: Tensor, axis: int, args: Any, kwargs: Any, *rest: Any) -> Any:
        value = func(*args, **kwargs)
        weights = self.changed(layer, z.movedim(axis, -1)).movedim(-1, axis)
        return with_gradient_of(value, weights.to(value.dtype))


def required_layers(victim: Victim, name: str) -> AttentionMap:
    """The attention layers of a model, refused where there are none."""
    layers = attention_layers(victim, victim.grey())
    layers.require(f"there is nothing for {name} to change")
    return layers


def readable_layers(victim: Victim, name: str) -> AttentionMap:
    """The attention layers of a model, refused where their weights are not one tensor."""
    layers = required_layers(victim, name)
    if layers.by_hand:
        raise UsageError(
            f"model '{victim.name}' computes its softmax by hand, and {name} has to see it as a whole: use pna or sgm"
        )
    return layers


def found_layers(layers: AttentionMap | None) -> AttentionMap:
    """The attention layers of a change that was prepared, refused where it was not."""
    if layers is None:
        raise UsageError("the attention of the model has not been looked for: call prepare(victim, ...) first")
    return layers
