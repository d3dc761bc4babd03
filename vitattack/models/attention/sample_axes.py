"""The place of the images of a batch in the scores of a layer, found by changing one image at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vitattack.models.attention.attention_map import AttentionMap, SampleAxis
from vitattack.models.attention.softmax_mode import SoftmaxMode, softmax_input
from vitattack.models.attention.vmapped import unmapped
from vitattack.models.victim import Victim, frozen

SAME = 1e-3  # of the largest change: what is less is rounding


def with_sample_axes(layers: AttentionMap, victim: Victim) -> AttentionMap:
    """Complete layers with the axes of their scores along which images lie, at four forwards of two or three images.

    The second image of a batch is changed, then the first: along the axis of the images the scores of one half change,
    then those of the other half. Where they depend on no image (scores of positions, queries of a class token), it is the only
    axis that grows with the batch; a layer without one gets no axis.
    """
    if not layers.layers or any(layer.samples for layer in layers.layers):
        return layers
    a, b, c = _images(victim.grey())
    by_hand = bool(layers.by_hand)
    plain, second, first, more = (_inputs(victim, torch.stack(x), by_hand) for x in ((a, b), (a, c), (c, b), (a, b, c)))
    axes = {
        number: _axis(plain[call], first[call], second[call]) or _growing_axis(plain[call], more[call])
        for call, number in enumerate(layers.calls)
        if number is not None and (call not in layers.by_hand or layers.by_hand[call].axis is not None)
    }
    return replace(layers, layers=tuple(replace(layer, samples=axes[layer.number]) for layer in layers.layers))


def with_head_order(layers: AttentionMap, victim: nn.Module, x: Tensor) -> AttentionMap:
    """Complete layers whose heads are folded into the first axis with their order there, at three forwards of two images.

    Other layers need none, and their models are not asked.
    """
    folded = {layer.number for layer in layers.layers if layer.heads > 1 and layer.head_axis is None}
    if not folded:
        return layers
    a, b, c = _images(x)
    by_hand = bool(layers.by_hand)
    plain, second, first = (_inputs(victim, torch.stack(x), by_hand) for x in ((a, b), (a, c), (c, b)))
    order = {
        number: _heads_first(layers.layers[number].heads, plain[call], _axis(plain[call], first[call], second[call]))
        for call, number in enumerate(layers.calls)
        if number in folded
    }
    return replace(
        layers, layers=tuple(replace(layer, heads_first=order.get(layer.number, False)) for layer in layers.layers)
    )


def _heads_first(heads: int, scores: Tensor, images: SampleAxis | None) -> bool | None:
    """Whether heads lie before two images in the first axis of scores; None if they may as well be windows."""
    size = len(scores)
    if size == heads:
        return False  # alone
    if images is None and size == 2 * heads:  # scores that depend on no image come twice
        behind = torch.allclose(scores[:heads], scores[heads:], atol=1e-6)
        before = torch.allclose(scores[::2], scores[1::2], atol=1e-6)
    elif images is not None and images.axis == 0:
        behind, before = images.inner % heads == 0, size // (2 * images.inner) % heads == 0
    else:
        return None
    return None if behind == before else before


def _images(x: Tensor) -> Tensor:
    """Three images of the shape of those in x."""
    return torch.rand(3, *x.shape[1:], generator=torch.Generator().manual_seed(0)).to(x)


def _inputs(victim: nn.Module, x: Tensor, by_hand: bool) -> list[Tensor]:
    with frozen(victim), torch.no_grad(), _Inputs(exponentials=by_hand) as mode:
        victim(x)
    return mode.inputs


def _axis(plain: Tensor, first: Tensor, second: Tensor) -> SampleAxis | None:
    changes = [(other - plain).abs().nan_to_num(0.0, 0.0, 0.0) for other in (first, second)]
    largest = max(float(change.max()) for change in changes)
    for axis, size in enumerate(plain.shape):
        of_first, of_second = (change.movedim(axis, 0).flatten(1).amax(1) > SAME * largest for change in changes)
        inner = int(of_first.long().argmin())  # rows of the first image before any of the second
        wanted = torch.arange(size, device=plain.device) // max(inner, 1) % 2 == 1
        if inner and bool((of_second == wanted).all()) and bool((of_first == ~wanted).all()):
            return SampleAxis(axis, inner)
    return None


def _growing_axis(two: Tensor, three: Tensor) -> SampleAxis | None:
    """The axis with as many rows as there are images, if there is just one."""
    sizes = zip(two.shape, three.shape, strict=True) if two.dim() == three.dim() else ()
    growing = [axis for axis, (before, after) in enumerate(sizes) if (before, after) == (2, 3)]
    return SampleAxis(growing[0], 1) if len(growing) == 1 else None


class _Inputs(SoftmaxMode):
    """Keeps what per-sample scales would multiply: the scores of every softmax, or the queries of a fused one."""

    def __init__(self, *, exponentials: bool) -> None:
        super().__init__(exponentials=exponentials)
        self.inputs: list[Tensor] = []

    def softmax(self, call: int, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        (flat, named), _ = unmapped(args, kwargs)
        given = named["query"] if "query" in named and not flat else softmax_input(flat, named)
        self.inputs.append(given.detach().clone())
        return func(*args, **kwargs)
