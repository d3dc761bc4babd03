"""All contact with the softmax of attention: one function mode sees every one of them, in call order."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType, TracebackType
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from vitattack.errors import UsageError, VitattackError
from vitattack.models.scores import (
    ADDITIONS,
    MAPS,
    PRODUCTS,
    SOFTMAXES,
    Trail,
    added_mask,
    float_mask,
    rescaled_scores,
)

Per = Literal["layer", "head", "sample"]
# (softmax call that follows, how many additions since the last projection or product)
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
    """What a probing forward found: attention layers, softmaxes that are none, and where masks are added."""

    model: str
    layers: tuple[AttentionLayer, ...]
    ignored: tuple[tuple[str, str], ...]  # (module, reason)
    calls: tuple[int | None, ...]  # per softmax call: the layer's number, None where ignored
    masks: frozenset[Place]  # the additions that put a mask into scores

    def __len__(self) -> int:
        return len(self.layers)

    def require(self, purpose: str) -> None:
        if not self.layers:
            raise UsageError(f"model '{self.model}' has no attention softmax, so {purpose}: give a transformer")


@dataclass
class Seen:
    """One attention softmax as it happens. The normalised axis is the last one of everything it gives."""

    layer: AttentionLayer
    _scores: Tensor | None
    _exact: Callable[[], Tensor]
    _mask: Tensor | None
    _axis: int

    def scores(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Explicit pre-softmax scores, masked entries included; in float64 the products of the q and k of this forward."""
        if dtype == torch.float64 or self._scores is None:
            return self._exact().movedim(self._axis, -1).to(dtype)
        return self._scores.detach().movedim(self._axis, -1).to(dtype)

    def masked(self) -> Tensor | None:
        """True where a mask forbids the entry."""
        return None if self._mask is None else self._mask.movedim(self._axis, -1)


# nn.MultiheadAttention hides its softmax inside one function that dispatches as a whole. This copy of it does not, so
# that the functions it calls are seen one by one.
_open_mha = FunctionType(
    F.multi_head_attention_forward.__code__,
    {**F.__dict__, "has_torch_function": lambda *_: False},
    "multi_head_attention_forward",
    F.multi_head_attention_forward.__defaults__,
    F.multi_head_attention_forward.__closure__,
)
_open_mha.__kwdefaults__ = F.multi_head_attention_forward.__kwdefaults__


class SoftmaxMode(TorchFunctionMode):
    """Opens nn.MultiheadAttention and numbers softmaxes and mask-like additions; subclasses say what happens to them."""

    def __init__(self) -> None:
        super().__init__()
        self.softmaxes = 0
        self.inside = 0  # how often the mode has re-entered itself to open nn.MultiheadAttention
        self._additions = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__":
            return func(*args, **kwargs)
        if name == "multi_head_attention_forward":
            self.inside += 1
            try:
                with self:
                    return _open_mha(*args, **kwargs)
            finally:
                self.inside -= 1
        if name in SOFTMAXES:
            call, self.softmaxes, self._additions = self.softmaxes, self.softmaxes + 1, 0
            return self.softmax(call, func, name, args, kwargs)
        out = func(*args, **kwargs)
        # An addition is named by the softmax it precedes and its place after the last projection or product.
        if name in PRODUCTS or name in MAPS:
            self._additions = 0
        place = None
        if name in ADDITIONS:
            place, self._additions = (self.softmaxes, self._additions), self._additions + 1
        self.other(func, name, args, kwargs, out, place)
        return out

    def softmax(self, call: int, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        return func(*args, **kwargs)

    def other(self, func: Any, name: str, args: Any, kwargs: Any, out: Any, place: Place | None) -> None:
        """Anything that is no softmax has been computed."""


class AttentionTap(SoftmaxMode):
    """`with AttentionTap(layers, ...): victim(x)` reads or changes every attention softmax of the forwards inside.

    `rescale` multiplies the scores, never their masks: (L,), with per="head" (L, H), with per="sample" (B, L).
    `observe` is told of every layer. `weights(layer, scores)` stands in for the softmax, which unfuses the kernel.
    """

    def __init__(
        self,
        layers: AttentionMap,
        *,
        rescale: Tensor | None = None,
        per: Per = "layer",
        observe: Callable[[Seen], None] | None = None,
        weights: Callable[[AttentionLayer, Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        if rescale is not None:
            check_scales(layers, rescale, per)
        self.layers = layers
        self.rescale, self.per, self.observe, self.weights = rescale, per, observe, weights
        self._trail = Trail(exact=observe is not None)
        self._follows = observe is not None or bool(layers.masks)

    def __enter__(self) -> AttentionTap:
        super().__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        super().__exit__(kind, error, at)
        if self.inside:
            return
        self._trail.clear()
        if kind is None and self.softmaxes % max(1, len(self.layers.calls)):
            raise self._changed()

    def softmax(self, call: int, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        calls = self.layers.calls
        if not calls:
            raise self._changed()
        number = calls[call % len(calls)]
        if number is None:
            return func(*args, **kwargs)
        layer = self.layers.layers[number]
        if (name != "softmax") != layer.fused:
            raise self._changed()
        try:
            return (self._fused if layer.fused else self._plain)(layer, func, args, kwargs)
        finally:
            self._trail.clear()

    def other(self, func: Any, name: str, args: Any, kwargs: Any, out: Any, place: Place | None) -> None:
        if not self._follows:
            return
        self._trail.step(func, name, args, kwargs, out)
        if place is not None:
            call, number = place
            if (call % len(self.layers.calls), number) in self.layers.masks:
                mask = added_mask(name, args, kwargs, out)
                if mask is not None:
                    self._trail.add_mask(out, mask, place)

    def _plain(self, layer: AttentionLayer, func: Any, args: Any, kwargs: Any) -> Any:
        z: Tensor = args[0] if args else kwargs.pop("input")
        axis: int = args[1] if len(args) > 1 else kwargs.get("dim", -1)
        trace = self._trail.of(z)
        mask = trace.mask if trace else None
        exact = trace.exact if trace else None
        if self.rescale is not None:
            scale = _shaped(self.rescale, self.per, layer, z)
            source, z = exact, rescaled_scores(z, scale, mask)
            if source is not None:
                exact = lambda: rescaled_scores(source(), scale.detach().double(), _wide(mask))  # noqa: E731
        if self.observe is not None:
            scores = z
            forbidden = z == -math.inf if mask is None else (mask != 0) | (z == -math.inf)
            self.observe(Seen(layer, z, exact or (lambda: scores.detach().double()), forbidden, axis))
        if self.weights is not None:
            p = self.weights(layer, z.movedim(axis, -1)).movedim(-1, axis)
            return p.to(kwargs.get("dtype") or p.dtype)
        return func(z, *args[1:], **kwargs)

    def _fused(self, layer: AttentionLayer, func: Any, args: Any, kwargs: Any) -> Any:
        call = _Sdpa.of(args, kwargs)
        trace = self._trail.of(call.mask)
        forbidden = trace.mask if trace else None
        if call.mask is not None and call.mask.is_floating_point():
            forbidden = float_mask(call.mask) if forbidden is None else forbidden
        if self.rescale is not None:
            # q carries the scale, so that the kernel stays fused; the position bias needs its own.
            scale = _shaped(self.rescale, self.per, layer, call.q)
            call.q = call.q * scale
            if call.mask is not None and call.mask.is_floating_point():
                call.mask = rescaled_scores(call.mask, scale, forbidden)
        if self.observe is not None:
            self.observe(Seen(layer, None, call.exact, call.forbidden(forbidden), -1))
        if self.weights is not None:
            return self.weights(layer, call.scores()) @ call.v
        return call.run(func)

    def _changed(self) -> VitattackError:
        return VitattackError(
            f"model '{self.layers.model}' ran other softmaxes than when it was probed: probe it with images of this size"
        )


@dataclass
class _Sdpa:
    """The arguments of one scaled_dot_product_attention."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    dropout: float
    causal: bool
    scale: float | None
    rest: dict[str, Any]

    @classmethod
    def of(cls, args: Any, kwargs: Any) -> _Sdpa:
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        q, k, v = (given.pop(name) for name in names[:3])
        mask, dropout, causal = given.pop("attn_mask", None), given.pop("dropout_p", 0.0), given.pop("is_causal", False)
        return cls(q, k, v, mask, dropout, causal, given.pop("scale", None), given)

    def run(self, func: Any) -> Tensor:
        scale = {} if self.scale is None else {"scale": self.scale}
        out: Tensor = func(self.q, self.k, self.v, self.mask, self.dropout, self.causal, **scale, **self.rest)
        return out

    def scores(self, dtype: torch.dtype | None = None) -> Tensor:
        q, k = (self.q, self.k) if dtype is None else (self.q.detach().to(dtype), self.k.detach().to(dtype))
        if self.rest.get("enable_gqa") and k.shape[-3] != q.shape[-3]:
            k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
            self.v = self.v.repeat_interleave(q.shape[-3] // self.v.shape[-3], -3)
        z = q @ k.transpose(-2, -1) * (self.scale if self.scale is not None else 1 / math.sqrt(q.shape[-1]))
        if self.mask is not None:
            z = z.masked_fill(~self.mask, -math.inf) if self.mask.dtype == torch.bool else z + self.mask.to(z.dtype)
        if self.causal:
            z = z.masked_fill(torch.ones_like(z, dtype=torch.bool).triu(1), -math.inf)
        return z

    def exact(self) -> Tensor:
        return self.scores(torch.float64)

    def forbidden(self, mask: Tensor | None) -> Tensor | None:
        shape = (*self.q.shape[:-1], self.k.shape[-2])
        found = None
        if self.mask is not None and self.mask.dtype == torch.bool:
            found = (~self.mask).expand(shape)
        elif mask is not None:
            found = (mask != 0).expand(shape)
        if self.causal:
            later = torch.ones(shape, dtype=torch.bool, device=self.q.device).triu(1)
            found = later if found is None else found | later
        return found


def check_scales(layers: AttentionMap, scales: Tensor, per: Per) -> None:
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


def _shaped(scales: Tensor, per: Per, layer: AttentionLayer, scores: Tensor) -> Tensor:
    """The layer's factor, in a shape that broadcasts over its scores or its q."""
    lead, ones = scores.shape[0], [1] * scores.dim()
    if per == "layer":
        return scales[layer.number].to(scores.dtype)
    if per == "sample":
        if lead % len(scales):
            raise UsageError(f"scales are for {len(scales)} samples, the batch has another size: cut them alike")
        # Windows and folded heads lie inside the sample: the batch is the outermost axis everywhere.
        factor, ones[0] = scales[:, layer.number].repeat_interleave(lead // len(scales)), lead
        return factor.to(scores.dtype).view(ones)
    factor = scales[layer.number, : layer.heads]
    if layer.heads > 1 and layer.head_axis is None:
        factor, ones[0] = factor.repeat(lead // layer.heads), lead
    elif layer.head_axis is not None:
        ones[layer.head_axis] = layer.heads
    return factor.to(scores.dtype).view(ones)


def _wide(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask.double()
