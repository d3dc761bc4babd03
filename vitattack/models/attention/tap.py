"""Access to the softmaxes of attention: one function mode that sees all of them in call order."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType, TracebackType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from vitattack.core.errors import VitattackError
from vitattack.models.attention.attention_map import (
    AttentionLayer,
    AttentionMap,
    Per,
    Place,
    broadcast_scales,
    check_scales,
)
from vitattack.models.attention.scores import (
    ADDITIONS,
    BOTTOMLESS,
    MAPS,
    PRODUCTS,
    SOFTMAXES,
    Trail,
    added_mask,
    float_mask,
    rescaled_scores,
)
from vitattack.models.attention.sdpa import Sdpa

Exact = Callable[[], Tensor]


@dataclass
class Seen:
    """One attention softmax while it runs. The normalised axis is the last one of all tensors it returns."""

    layer: AttentionLayer
    _given: Callable[[], Tensor]
    _exact: Callable[[], Tensor]
    _mask: Tensor | None
    _axis: int

    def scores(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the scores before the softmax, masked ones included; in float64 computed anew from q and k."""
        if dtype != torch.float64:
            return self._given().detach().movedim(self._axis, -1).to(dtype)
        exact = self._exact().detach().movedim(self._axis, -1)
        if self.layer.fused:
            return exact
        given = self._given().detach().movedim(self._axis, -1).double()
        return exact if _agree(given, exact) else given

    def by_head(self, rows: Tensor) -> Tensor:
        """Reshape a tensor in the shape of the scores to (heads, rows, entries)."""
        heads, at = self.layer.heads, self.layer.head_axis
        if at is not None:
            return rows.movedim(at - (0 <= self._axis < at), 0).reshape(heads, -1, rows.shape[-1])
        return rows.reshape(-1, heads, *rows.shape[1:]).movedim(1, 0).reshape(heads, -1, rows.shape[-1])

    def masked(self) -> Tensor | None:
        """Return True where a mask forbids the entry, None without a mask."""
        return None if self._mask is None else self._mask.movedim(self._axis, -1)


def _agree(given: Tensor, exact: Tensor) -> bool:
    """Whether the replay in float64 gives the same quantity: a model may change its scores in ways not followed."""
    if given.shape != exact.shape:
        return False
    finite = torch.isfinite(given) & (given.abs() < -BOTTOMLESS)
    given, exact = given[finite], exact[finite]
    return given.numel() == 0 or bool((given - exact).abs().amax() <= 1e-3 * (1 + given.abs().amax()))


def _then_rescaled(exact: Exact | None, scale: Tensor, mask: Tensor | None) -> Exact | None:
    if exact is None:
        return None
    return lambda: rescaled_scores(exact(), scale.double(), None if mask is None else mask.double())


# nn.MultiheadAttention hides its softmax inside one function that dispatches as a whole. This copy does not dispatch,
# so that the mode sees the functions it calls one by one.
_open_mha = FunctionType(
    F.multi_head_attention_forward.__code__,
    {**F.__dict__, "has_torch_function": lambda *_: False},
    "multi_head_attention_forward",
    F.multi_head_attention_forward.__defaults__,
    F.multi_head_attention_forward.__closure__,
)
_open_mha.__kwdefaults__ = F.multi_head_attention_forward.__kwdefaults__


class SoftmaxMode(TorchFunctionMode):
    """A mode that opens nn.MultiheadAttention and numbers softmaxes and additions; subclasses handle them."""

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
        # An addition is identified by the softmax it precedes and its position after the last projection or product.
        if name in PRODUCTS or name in MAPS:
            self._additions = 0
        place = None
        if name in ADDITIONS:
            place, self._additions = (self.softmaxes, self._additions), self._additions + 1
        self.other(func, name, args, kwargs, out, place)
        return out

    def softmax(self, call: int, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Run the softmax with this number, or what replaces it."""
        return func(*args, **kwargs)

    def other(self, func: Any, name: str, args: Any, kwargs: Any, out: Any, place: Place | None) -> None:
        """Take note of a function other than a softmax that has just been computed."""


class AttentionTap(SoftmaxMode):
    """A mode that reads or changes every attention softmax: `with AttentionTap(layers, ...): victim(x)`.

    `rescale` multiplies the scores, never their masks: (L,), with per="head" (L, H), with per="sample" (B, L),
    which takes layers from `with_sample_axes`.
    `observe` is called with every layer. `replacement(layer, scores)` replaces the softmax and unfuses the kernel.
    """

    def __init__(
        self,
        layers: AttentionMap,
        *,
        rescale: Tensor | None = None,
        per: Per = "layer",
        observe: Callable[[Seen], None] | None = None,
        replacement: Callable[[AttentionLayer, Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        if rescale is not None:
            check_scales(layers, rescale, per)
        self.layers = layers
        self.rescale, self.per, self.observe, self.replacement = rescale, per, observe, replacement
        self._trail = Trail(exact=observe is not None)
        self._follows = observe is not None or bool(layers.masks)

    def __enter__(self) -> AttentionTap:
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        super().__exit__(kind, error, at)  # type: ignore[no-untyped-call]
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
        z: Tensor = args[0] if args else kwargs["input"]
        axis: int = args[1] if len(args) > 1 else kwargs.get("dim", -1)
        trace = self._trail.of(z)
        mask = trace.mask if trace else None
        exact = trace.exact if trace else None
        if self.rescale is not None:
            scale = broadcast_scales(self.rescale, self.per, layer, z)
            z, exact = rescaled_scores(z, scale, mask), _then_rescaled(exact, scale, mask)
        if self.observe is not None:
            forbidden = z == -math.inf if mask is None else (mask != 0) | (z == -math.inf)
            self.observe(Seen(layer, lambda: z, exact or (lambda: z.double()), forbidden, axis))
        if self.replacement is not None:
            p = self.replacement(layer, z.movedim(axis, -1)).movedim(-1, axis)
            wanted = kwargs.get("dtype")
            # A model that casts to float32 guards against half precision; double precision is kept.
            return p if wanted is None or z.dtype == torch.float64 else p.to(wanted)
        return func(z, *args[1:], **{key: value for key, value in kwargs.items() if key != "input"})

    def _fused(self, layer: AttentionLayer, func: Any, args: Any, kwargs: Any) -> Any:
        call = Sdpa.of(args, kwargs)
        trace = self._trail.of(call.mask)
        forbidden = trace.mask if trace else None
        if call.mask is not None and call.mask.is_floating_point():
            forbidden = float_mask(call.mask) if forbidden is None else forbidden
        if self.rescale is not None:
            # Scaling q keeps the kernel fused; the position bias is scaled by itself.
            scale = broadcast_scales(self.rescale, self.per, layer, call.q)
            call.q = call.q * scale
            if call.mask is not None and call.mask.is_floating_point():
                call.mask = rescaled_scores(call.mask, scale, forbidden)
        if self.observe is not None:
            self.observe(Seen(layer, call.scores, call.exact, call.forbidden(forbidden), -1))
        if self.replacement is not None:
            return self.replacement(layer, call.scores()) @ call.v
        return call.run(func)

    def _changed(self) -> VitattackError:
        return VitattackError(
            f"model '{self.layers.model}' ran other softmaxes than when it was probed: probe it with images of this size"
        )
