"""Attention scores between the product of q and k and the softmax: their masks, and their values in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from vitattack.models.attention.contractions import PRODUCTS
from vitattack.models.attention.functions import CASTS, VIEWS

Function = Callable[..., Any]

# An additive constant this low masks an entry; learned position biases stay far above it.
MASK_BELOW = -50.0
# Masks such as finfo.min absorb the score they are added to and leave nothing to scale.
BOTTOMLESS = -1e4

ADDITIONS = {"add", "__add__", "__radd__", "__iadd__", "add_", "masked_fill", "masked_fill_", "where", "baddbmm"}
ARITHMETIC = {
    *ADDITIONS, "sub", "__sub__", "__isub__", "mul", "__mul__", "__rmul__", "__imul__", "mul_", "div", "__truediv__",
    "__itruediv__", "div_", "neg", "tanh", "clamp", "clip", "clamp_", "rescaled_scores",
}  # fmt: skip
MAPS = {"linear", "conv2d"}


def rescaled_scores(z: Tensor, scale: Tensor, mask: Tensor | None) -> Tensor:
    """Return s * z but for an additive mask m inside z, which is kept: s * (z - m) + m, exact at s = 1.

    It dispatches like a torch function, so that a tap around a rescaled view follows it as one step.
    """
    if has_torch_function((z,)):
        scaled: Tensor = handle_torch_function(rescaled_scores, (z,), z, scale, mask)
        return scaled
    if mask is None:
        return z * scale
    masked = mask != 0
    zero = z.new_zeros(())
    hidden = torch.where(masked & (mask > BOTTOMLESS), z - mask, zero)
    # Masked entries are taken out of the first product: -inf times a gradient of 0 would be NaN.
    return torch.where(masked, z + (scale - 1) * hidden, torch.where(masked, zero, z) * scale)


def added_mask(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Tensor | None:
    """Return the mask that an addition put into its result, in its shape: 0 where allowed, a constant <= -50 elsewhere."""
    if not isinstance(out, Tensor) or not out.is_floating_point():
        return None
    if name.startswith("masked_fill"):
        where = args[1] if len(args) > 1 else kwargs["mask"]
        value = args[2] if len(args) > 2 else kwargs["value"]
        return _filled(where, value, out)
    if name == "where":
        where, *values = [*args, *(kwargs[key] for key in ("input", "other") if key in kwargs)]
        if len(values) != 2:
            return None
        mask = _filled(where, values[0], out)
        return mask if mask is not None else _filled(~where, values[1], out)
    for operand in args[:2]:
        if isinstance(operand, Tensor) and _is_mask(operand):
            return operand.detach().to(out.dtype).expand(out.shape)
    return None


def _filled(where: Tensor, value: Any, out: Tensor) -> Tensor | None:
    if isinstance(value, Tensor) and value.numel() != 1:
        return None
    if float(value) > MASK_BELOW:
        return None
    constant = torch.as_tensor(float(value), dtype=out.dtype, device=out.device)
    return torch.where(where, constant, out.new_zeros(())).expand(out.shape)


def _is_mask(operand: Tensor) -> bool:
    if operand.requires_grad or not operand.is_floating_point() or operand.dim() < 2 or operand.numel() == 0:
        return False
    low = operand.min()
    return float(low) <= MASK_BELOW and bool(((operand == 0) | (operand == low)).all())


def float_mask(attn_mask: Tensor) -> Tensor:
    """Return the mask in a float attn_mask of unknown history: its very low entries; the rest is position bias."""
    return torch.where(attn_mask <= MASK_BELOW, attn_mask, attn_mask.new_zeros(())).detach()


@dataclass
class Trace:
    """The history of one tensor of scores; it holds the tensor so that its id is not reused."""

    tensor: Tensor
    mask: Tensor | None = None
    addition: tuple[int, int] | None = None
    exact: Function | None = None
    maps: int = 0


class Trail:
    """Follows scores through views and arithmetic; cleared at every softmax, so it never spans more than one block."""

    def __init__(self, *, exact: bool) -> None:
        self._exact = exact
        self._traces: dict[int, Trace] = {}

    def of(self, tensor: Any) -> Trace | None:
        return self._traces.get(id(tensor))

    def clear(self) -> None:
        self._traces.clear()

    def step(self, func: Function, name: str, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
        """Pass the history of the inputs of a function on to its output."""
        if name in PRODUCTS:
            if self._exact and isinstance(out, Tensor) and out.is_floating_point():
                self._traces[id(out)] = Trace(out, exact=lambda: func(*map(_double, args), **_doubled(kwargs)))
            return
        if name == "__setitem__":
            self._overwrite(args)
            return
        if not self._traces or name not in VIEWS | CASTS | ARITHMETIC | MAPS:
            return
        at = next((n for n, arg in enumerate(args) if id(arg) in self._traces), None)
        if at is None:
            return
        before = self._traces[id(args[at])]
        maps = before.maps + (name in MAPS)
        if maps > 1:  # head mixing is one map; a second one leaves the attention
            return
        outs = out if isinstance(out, tuple | list) else (out,)
        for number, tensor in enumerate(outs):
            if not isinstance(tensor, Tensor):
                continue
            part = number if isinstance(out, tuple | list) else None
            trace = Trace(tensor, addition=before.addition, maps=maps)
            if before.exact is not None:
                trace.exact = self._later(func, name, args, kwargs, part)
            if before.mask is not None:
                trace.mask = _moved_mask(func, name, args, kwargs, at, before.mask, tensor, part)
            if trace.exact is not None or trace.mask is not None:
                self._traces[id(tensor)] = trace

    def add_mask(self, tensor: Tensor, mask: Tensor, addition: tuple[int, int]) -> None:
        """Record that an addition put a mask into a tensor."""
        trace = self._traces.setdefault(id(tensor), Trace(tensor))
        # The lower of both, not the sum: a mask built step by step reaches the scores twice.
        trace.mask = mask if trace.mask is None else torch.minimum(trace.mask, mask)
        trace.addition = addition

    def _overwrite(self, args: Sequence[Any]) -> None:
        trace = self.of(args[0])
        if trace is None or trace.exact is None:
            return
        _, index, value = args
        before, after = trace.exact, self.of(value)

        def compute() -> Tensor:
            whole: Tensor = before()
            whole[index] = after.exact() if after and after.exact else _double(value)
            return whole

        trace.exact = compute

    def _later(
        self, func: Function, name: str, args: Sequence[Any], kwargs: dict[str, Any], part: int | None
    ) -> Function:
        sources = [self._traces[id(arg)].exact if id(arg) in self._traces else None for arg in args]

        def compute() -> Any:
            doubles = [source() if source else _double(arg) for source, arg in zip(sources, args, strict=True)]
            if name in CASTS:
                return doubles[0]
            result = func(*doubles, **_doubled(kwargs))
            return result if part is None else result[part]

        return compute


def _double(value: Any) -> Any:
    # Always a copy: an in-place operation replayed on it must not change the model's own tensors.
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.detach().to(torch.float64, copy=True)
    return [_double(item) for item in value] if isinstance(value, list) else value


def _doubled(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _double(value) for key, value in kwargs.items() if key != "out"}


def viewed(func: Function, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], at: int, shadow: Tensor) -> Any:
    """Apply the same change of view to a tensor that accompanies argument `at`."""
    shadow = shadow.contiguous() if name == "view" else shadow  # an expanded shadow has different strides
    return func(*args[:at], shadow, *args[at + 1 :], **kwargs)


def _moved_mask(
    func: Function,
    name: str,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    at: int,
    mask: Tensor,
    out: Tensor,
    part: int | None,
) -> Tensor | None:
    if name in VIEWS:
        moved: Any = viewed(func, name, args, kwargs, at, mask)
        result: Tensor = moved if part is None else moved[part]
        return result
    sizes = zip(reversed(mask.shape), reversed(out.shape), strict=False)
    fits = mask.dim() <= out.dim() and all(have in (1, want) for have, want in sizes)
    return mask.to(out.dtype).expand(out.shape) if fits and name not in MAPS else None
