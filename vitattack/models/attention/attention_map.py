"""The attention layers of a model in call order, and the scales that fit them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from vitattack.core.errors import UsageError

LOOKED_FOR = (
    "softmaxes (also of scaled_dot_product_attention and flex_attention, and exponentials divided by their sum) whose "
    "output weighs values over the axis that it normalises"
)
Per = Literal["layer", "head", "sample"]
# (number of the softmax call that follows, additions since the last projection or product)
Place = tuple[int, int]


class SampleAxis(NamedTuple):
    """The axis of the scores along which images lie: entry i belongs to image (i // inner) modulo the batch size.

    `inner` counts the heads or windows that are folded in behind the image.
    """

    axis: int
    inner: int


@dataclass(frozen=True)
class AttentionLayer:
    """One attention softmax: its number in call order, the module that runs it, the block around it."""

    number: int
    name: str
    block: str
    heads: int
    head_axis: int | None  # of the scores; None where heads are folded into the first axis, or there is one
    fused: bool
    kind: str  # sdpa | flex | softmax | product (weights times values, summed)
    temperature: tuple[float, ...] | None = None
    samples: SampleAxis | None = None  # known once `with_sample_axes` has probed it
    heads_first: bool | None = False  # whether folded heads lie before the images; None if that cannot be told


@dataclass(frozen=True)
class ByHand:
    """An exponential of a softmax written by hand."""

    axis: int | None  # of its rows; None for one that only joins their sum, or rescales it
    normalised: bool  # the logarithm of the sum was taken off before
    whole: bool  # its rows sum to one


@dataclass(frozen=True)
class AttentionMap:
    """The result of a probe: attention layers, softmaxes that are not attention, and additions of masks."""

    model: str
    layers: tuple[AttentionLayer, ...]
    ignored: tuple[tuple[str, str], ...]  # (module, reason)
    calls: tuple[int | None, ...]  # per softmax call: the number of its layer, None where ignored
    masks: frozenset[Place]  # additions of a mask to scores
    by_hand: Mapping[int, ByHand] = field(default_factory=dict)  # per call that is no softmax, but a part of one
    unseen: tuple[tuple[str, str], ...] = ()  # (module, reason) of attention that cannot be read or scaled

    def __len__(self) -> int:
        return len(self.layers)

    def require(self, purpose: str) -> None:
        """Raise a UsageError for a model without attention."""
        if not self.layers:
            hidden = _by_reason(self.unseen)
            reasons = "; ".join(dict.fromkeys(reason for _, reason in self.ignored if reason not in hidden))
            others = f" (it has others, and of those: {reasons})" if reasons else ""
            unseen = "".join(f"; '{names[0]}'{_more(names)}: {reason}" for reason, names in hidden.items())
            raise UsageError(
                f"model '{self.model}' has no attention softmax, so {purpose}: none that I can see, and I looked for "
                f"{LOOKED_FOR}{others}{unseen}"
            )

    def coverage(self) -> str | None:
        """Say how much attention is seen and how much is not; None where all of it is."""
        if not self.unseen:
            return None
        reasons = "; ".join(dict.fromkeys(reason for _, reason in self.unseen))
        seen = "1 attention softmax is" if len(self.layers) == 1 else f"{len(self.layers)} attention softmaxes are"
        return f"{seen} seen, {len(self.unseen)} more cannot be: {reasons}"


def _by_reason(found: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for name, reason in found:
        names.setdefault(reason, []).append(name)
    return names


def _more(names: Sequence[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


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
        return _per_sample(scales[:, layer.number], layer, scores).to(scores.dtype)
    factor = scales[layer.number, : layer.heads]
    if layer.heads > 1 and layer.head_axis is None:
        if layer.heads_first is None:
            raise UsageError(f"where the heads lie in the scores of '{layer.name}' is not known: use scales per layer")
        others = lead // layer.heads
        factor = factor.repeat_interleave(others) if layer.heads_first else factor.repeat(others)
        ones[0] = lead
    elif layer.head_axis is not None:
        ones[layer.head_axis] = layer.heads
    return factor.to(scores.dtype).view(ones)


def _per_sample(factors: Tensor, layer: AttentionLayer, scores: Tensor) -> Tensor:
    if layer.samples is None:
        raise UsageError(
            f"where the images lie in the scores of '{layer.name}' is not known, so they cannot be scaled per sample: "
            "use with_sample_axes, and scales per layer where no image changes the scores"
        )
    axis, inner = layer.samples
    size, ones = scores.shape[axis], [1] * scores.dim()
    if size % (len(factors) * inner):
        raise UsageError(f"scales are for {len(factors)} samples, the batch has another size: cut them alike")
    ones[axis] = size
    image = torch.arange(size, device=factors.device) // inner % len(factors)
    return factors[image].view(ones)
