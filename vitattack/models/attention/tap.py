"""Access to the softmaxes of attention: one function mode that sees all of them in call order."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from vitattack.core.errors import UsageError, VitattackError
from vitattack.models.attention.attention_map import (
    AttentionLayer,
    AttentionMap,
    ByHand,
    Per,
    Place,
    broadcast_scales,
    check_scales,
)
from vitattack.models.attention.flex import Flex
from vitattack.models.attention.functions import EXPONENTIALS
from vitattack.models.attention.scores import BOTTOMLESS, Trail, added_mask, float_mask, rescaled_scores
from vitattack.models.attention.sdpa import Sdpa
from vitattack.models.attention.softmax_mode import SoftmaxMode, softmax_axis, softmax_input
from vitattack.models.attention.vmapped import unmapped

FLEX = "flex_attention"
NAMES = {"sdpa": "scaled_dot_product_attention", "flex": FLEX}  # of functions, by the kind of layer
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


def _in_shape(mask: Tensor, scores: Tensor) -> Tensor:
    """Return a mask noted inside vmap in the shape of scores outside."""
    ((mask,), _), _ = unmapped((mask,), {})
    return mask.reshape([1] * (scores.dim() - mask.dim()) + list(mask.shape)).expand(scores.shape)


def _then_rescaled(exact: Exact | None, scale: Tensor, mask: Tensor | None) -> Exact | None:
    if exact is None:
        return None
    return lambda: rescaled_scores(exact(), scale.double(), None if mask is None else mask.double())


class AttentionTap(SoftmaxMode):
    """A mode that reads or changes every attention softmax: `with AttentionTap(layers, ...): victim(x)`.

    `rescale` multiplies the scores, never their masks: (L,), with per="head" (L, H), with per="sample" (B, L),
    which takes layers from `with_sample_axes`.
    `observe` is called with every layer. `replacement(layer, scores)` replaces the softmax and unfuses the kernel; with `only`,
    layers of other numbers stay as they are, to the bit.
    """

    def __init__(
        self,
        layers: AttentionMap,
        *,
        rescale: Tensor | None = None,
        per: Per = "layer",
        observe: Callable[[Seen], None] | None = None,
        replacement: Callable[[AttentionLayer, Tensor], Tensor] | None = None,
        only: Collection[int] | None = None,
    ) -> None:
        super().__init__(exponentials=bool(layers.by_hand))
        if rescale is not None:
            check_scales(layers, rescale, per)
        self.layers = layers
        self.rescale, self.per, self.observe, self.replacement, self.only = rescale, per, observe, replacement, only
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
        call %= len(calls)
        number, by_hand = calls[call], self.layers.by_hand.get(call)
        if number is None or (self.only is not None and number not in self.only):
            return func(*args, **kwargs)
        layer = self.layers.layers[number]
        if name not in (EXPONENTIALS if by_hand is not None else {NAMES.get(layer.kind, "softmax")}):
            raise self._changed()
        (given, named), mapped = unmapped(args, kwargs)
        try:
            if name == FLEX:
                return self._flex(layer, func, args, kwargs)
            if layer.fused:
                return mapped(self._fused(layer, func, given, named))
            z = softmax_input(args, kwargs)
            trace, inner = self._trail.of(z), softmax_input(given, named)
            mask, exact = (trace.mask, trace.exact) if trace else (None, None)
            if inner is not z:  # what was noted inside vmap cannot be replayed outside
                mask, exact = None if mask is None else _in_shape(mask, inner), None
            if by_hand is not None:
                return mapped(self._exponential(layer, by_hand, func, name, inner, mask, exact))
            axis = softmax_axis(args, kwargs, z.dim()) - z.dim()
            return mapped(self._plain(layer, func, inner, axis, given, named, mask, exact))
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

    def _plain(
        self,
        layer: AttentionLayer,
        func: Any,
        z: Tensor,
        axis: int,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        mask: Tensor | None,
        exact: Exact | None,
    ) -> Any:
        z, exact = self._rescaled(layer, z, mask, exact)
        self._show(layer, z, axis, mask, exact)
        if self.replacement is not None:
            p = self.replacement(layer, z.movedim(axis, -1)).movedim(-1, axis)
            wanted = kwargs.get("dtype")
            # A model that casts to float32 guards against half precision; double precision is kept.
            return p if wanted is None or z.dtype == torch.float64 else p.to(wanted)
        rest = {key: value for key, value in kwargs.items() if key not in ("input", "self")}
        return func(
            z, *([axis, *args[2:]] if len(args) > 1 else []), **(rest | {"dim": axis} if "dim" in rest else rest)
        )

    def _exponential(
        self,
        layer: AttentionLayer,
        by_hand: ByHand,
        func: Any,
        name: str,
        z: Tensor,
        mask: Tensor | None,
        exact: Exact | None,
    ) -> Any:
        """Run an exponential of a softmax written by hand, whose model divides by the sum."""
        given, z = z, z.clone() if name.endswith("_") else z
        if self.rescale is not None:
            lowest = torch.where(z == -math.inf, z, z.new_zeros(()))  # times a scale, it would have no gradient
            z, exact = self._rescaled(layer, z, lowest if mask is None else torch.minimum(mask, lowest), exact)
            if by_hand.normalised and by_hand.axis is not None:  # the logarithm of the sum was taken off before
                z = z - (z.logsumexp(by_hand.axis, keepdim=True) - given.logsumexp(by_hand.axis, keepdim=True))
        if by_hand.axis is not None:
            self._show(layer, z, by_hand.axis, mask, exact)
            if self.replacement is not None:
                if not by_hand.whole:
                    raise UsageError(
                        f"the softmax of '{layer.name}' is written by hand in parts or with a remainder, and can be scaled "
                        "but not replaced: use mode=surrogate"
                    )
                p = self.replacement(layer, z.movedim(by_hand.axis, -1)).movedim(-1, by_hand.axis)
                return given.copy_(p) if name.endswith("_") else p
        if name.endswith("_"):
            return given.copy_(getattr(torch, name[:-1])(z))
        return func(z)

    def _rescaled(
        self, layer: AttentionLayer, z: Tensor, mask: Tensor | None, exact: Exact | None
    ) -> tuple[Tensor, Exact | None]:
        if self.rescale is None:
            return z, exact
        scale = broadcast_scales(self.rescale, self.per, layer, z)
        return rescaled_scores(z, scale, mask), _then_rescaled(exact, scale, mask)

    def _show(self, layer: AttentionLayer, z: Tensor, axis: int, mask: Tensor | None, exact: Exact | None) -> None:
        if self.observe is not None:
            forbidden = z == -math.inf if mask is None else (mask != 0) | (z == -math.inf)
            self.observe(Seen(layer, lambda: z, exact or (lambda: z.double()), forbidden, axis))

    def _flex(self, layer: AttentionLayer, func: Any, args: Any, kwargs: Any) -> Any:
        call = Flex.of(args, kwargs)
        if self.rescale is not None:
            call.rescale(broadcast_scales(self.rescale, self.per, layer, call.q))
        if self.observe is not None:
            z = call.scores()
            self.observe(Seen(layer, lambda: z, lambda: call.scores(torch.float64), z == -math.inf, -1))
        if self.replacement is not None:
            return call.explicit(self.replacement(layer, call.scores()))
        if self.rescale is not None and self.rescale.requires_grad:
            return call.explicit(call.scores().softmax(-1))
        return call.run(func)

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
