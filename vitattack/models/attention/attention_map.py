"""The attention layers of a model in call order, and the scales that fit them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from vitattack.core.errors import UsageError

Per = Literal["layer", "head", "sample"]
# (number of the softmax call that follows, additions since the last projection or product)
Place = tuple[int, int]


@dataclass(frozen=True)
class AttentionLayer:
    """One attention softmax: its number in call order, the module that runs it, the block around it."""

    number: int
    name: str
    block: str
    heads: int
    head_axis: int | None  # of the scores; None where heads are folded into the first axis, or there is one
    fused: bool
    kind: str  # sdpa | softmax | product (weights times values, summed)
    temperature: tuple[float, ...] | None = None


@dataclass(frozen=True)
class AttentionMap:
    """The result of a probe: attention layers, softmaxes that are not attention, and additions of masks."""

    model: str
    layers: tuple[AttentionLayer, ...]
    ignored: tuple[tuple[str, str], ...]  # (module, reason)
    calls: tuple[int | None, ...]  # per softmax call: the number of its layer, None where ignored
    masks: frozenset[Place]  # additions of a mask to scores

    def __len__(self) -> int:
        return len(self.layers)

    def require(self, purpose: str) -> None:
        """Raise a UsageError for a model without attention."""
        if not self.layers:
            raise UsageError(f"model '{self.model}' has no attention softmax, so {purpose}: give a transformer")


def check_scales(layers: AttentionMap, scales: Tensor, per: Per) -> None:
    """Raise a UsageError if scales do not have the shape that the layers need."""
    layers.require("there is nothing to rescale")
    count, heads = len(layers), max(layer.heads for layer in layers.layers)
    wanted = {"layer": f"({count},)", "head": f"({count}, {heads})", "sample": f"(B, {count})"}
    fits = {
        "layer": scales.shape == (count,),
        "head": scales.shape == (count, heads),
        "sample": scales.dim() == 2 and scales.shape[1] == count,
    }
    if per not in fits:
        raise UsageError(f"scales per '{per}' are not known: use layer, head or sample")
    if not fits[per] or not scales.is_floating_point():
        raise UsageError(
            f"scales are {scales.dtype} of shape {tuple(scales.shape)}, '{layers.model}' takes floats of {wanted[per]}"
        )


def broadcast_scales(scales: Tensor, per: Per, layer: AttentionLayer, scores: Tensor) -> Tensor:
    """Return the factor of a layer in a shape that broadcasts over its scores or its q."""
    lead, ones = scores.shape[0], [1] * scores.dim()
    if per == "layer":
        return scales[layer.number].to(scores.dtype)
    if per == "sample":
        if lead % len(scales):
            raise UsageError(f"scales are for {len(scales)} samples, the batch has another size: cut them alike")
        # Windows and heads are folded inside the sample: the batch is always the outermost axis.
        factor, ones[0] = scales[:, layer.number].repeat_interleave(lead // len(scales)), lead
        return factor.to(scores.dtype).view(ones)
    factor = scales[layer.number, : layer.heads]
    if layer.heads > 1 and layer.head_axis is None:
        factor, ones[0] = factor.repeat(lead // layer.heads), lead
    elif layer.head_axis is not None:
        ones[layer.head_axis] = layer.heads
    return factor.to(scores.dtype).view(ones)
