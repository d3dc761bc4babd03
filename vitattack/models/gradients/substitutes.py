"""Substitute gradients, call by call: a forward pass that is the model's own to the bit, with another backward.

Rounding, thresholds, selections and clamps have gradients that are zero almost everywhere, and custom autograd functions
may return anything. `SubstituteMode` lets the gradient pass such calls as if they were the identity (Athalye, Carlini and
Wagner, ICML 2018: BPDA), wherever the model makes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode

Kind = Literal["rounding", "threshold", "clamp", "function"]
KINDS: tuple[Kind, ...] = get_args(Kind)

ROUNDING = {"round", "floor", "ceil", "trunc", "fix", "sign", "sgn"}
CLAMPS = {"clamp", "clip", "clamp_min", "clamp_max", "hardtanh", "relu6"}
GREATER, LESS = {"gt", "ge", "greater", "greater_equal"}, {"lt", "le", "less", "less_equal"}
CASTS = {"float", "double", "half", "bfloat16", "to", "type", "type_as"}
LOGICAL = {"__invert__", "__and__", "__or__", "__xor__", "logical_not", "logical_and", "logical_or", "bitwise_not"}
SHAPES = {"unsqueeze", "squeeze", "view", "reshape", "expand", "expand_as", "view_as", "movedim", "permute", "transpose"}
RANKINGS = {"topk", "argsort", "sort", "argmax", "argmin", "kthvalue", "max", "min"}
MASKS_OF_PLACES = {"scatter", "scatter_", "one_hot"}
WIDTH = 0.1  # of the slope that stands in for a step, in deviations of what is compared


class _WithGradientOf(Function):
    """The value of one tensor with the gradient of another of its shape."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, source: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        return None, grads[0]


def with_gradient_of(value: Tensor, source: Tensor) -> Tensor:
    """Return `value`, to the bit, with gradients passed to `source` as if it were the identity of it."""
    result: Tensor = _WithGradientOf.apply(value.detach(), source)
    return result


def _learns(tensor: object) -> bool:
    return isinstance(tensor, Tensor) and tensor.requires_grad and tensor.is_floating_point()


class SubstituteMode(TorchFunctionMode):
    """A mode that replaces the backward of some kinds of calls; `seen` counts those met."""

    def __init__(self, kinds: frozenset[Kind]) -> None:
        super().__init__()
        self.kinds = kinds
        self.seen: dict[str, int] = {}
        # Outputs without a gradient that follow from tensors with one: the tensor itself is kept, so that its id is its own.
        self._steps: dict[int, tuple[Tensor, Tensor | None]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not torch.is_grad_enabled() or not args:
            return out
        return self._substitute(getattr(func, "__name__", "").strip("_"), args, kwargs or {}, out)

    def _substitute(self, name: str, args: Any, kwargs: Any, out: Any) -> Any:
        first = args[0]
        if "rounding" in self.kinds and name in ROUNDING and _learns(first):
            return self._found(name, with_gradient_of(out, first))
        if "clamp" in self.kinds and name in CLAMPS and _learns(first) and out.shape == first.shape:
            return self._found(name, with_gradient_of(out, first))
        return self._thresholds(name, args, kwargs, out) if "threshold" in self.kinds else out

    def _thresholds(self, name: str, args: Any, kwargs: Any, out: Any) -> Any:
        first, second = args[0], args[1] if len(args) > 1 else None
        if name in GREATER | LESS and (_learns(first) or _learns(second)):
            difference = first - second if name in GREATER else second - first
            self._remember(out, difference)
        elif name in RANKINGS and _learns(first):
            for part in out if isinstance(out, tuple) else (out,):
                if not part.is_floating_point():
                    self._remember(part, None)
        elif name in {each.strip("_") for each in LOGICAL} and any(self._knows(a) for a in args):
            self._remember(out, None)
        elif name in MASKS_OF_PLACES and any(self._knows(a) for a in (*args, *kwargs.values())):
            self._remember(out, None)
        elif name in SHAPES and self._knows(first):
            _, difference = self._steps[id(first)]
            self._remember(out, None if difference is None else getattr(difference, name)(*args[1:], **kwargs))
        elif name in CASTS and self._knows(first) and isinstance(out, Tensor) and out.is_floating_point():
            _, difference = self._steps[id(first)]
            if difference is not None:
                width = WIDTH * difference.detach().std().clamp_min(1e-12)
                out = self._found("threshold", with_gradient_of(out, torch.sigmoid(difference / width)))
            self._remember(out, None)
        elif name in ("mul", "rmul", "multiply") and (self._knows(first) or self._knows(second)):
            other = second if self._knows(first) else first
            if _learns(other) and other.shape == out.shape:
                return self._found("mask", with_gradient_of(out, other))
        elif name == "where" and self._knows(first) and len(args) == 3:
            return self._selected(out, args[1:])
        elif name in ("masked_fill", "masked_fill_") and self._knows(second) and _learns(first):
            return self._found("mask", with_gradient_of(out, first))
        return out

    def _selected(self, out: Tensor, options: tuple[Any, ...]) -> Tensor:
        learning = [o for o in options if _learns(o) and o.shape == out.shape]
        if not learning:
            return out
        source = learning[0] if len(learning) == 1 else sum(learning[1:], learning[0])
        return self._found("where", with_gradient_of(out, source))

    def _remember(self, out: Tensor, difference: Tensor | None) -> None:
        self._steps[id(out)] = out, difference

    def _knows(self, tensor: object) -> bool:
        return id(tensor) in self._steps

    def _found(self, name: str, out: Tensor) -> Tensor:
        self.seen[name] = self.seen.get(name, 0) + 1
        return out

    def forget(self) -> None:
        self._steps.clear()


def custom_functions(root: Tensor) -> Iterator[BackwardCFunction]:
    """Nodes of custom autograd functions in the graph of a tensor."""
    waiting, met = [root.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in met:
            continue
        met.add(node)
        if isinstance(node, BackwardCFunction) and not isinstance(node, cast(Any, _WithGradientOf)._backward_cls):
            yield node
        waiting.extend(each for each, _ in node.next_functions)


def pass_through(node: BackwardCFunction) -> bool:
    """Make the backward of a node that of the identity on its inputs of the output's shape; False if it has none."""
    given = [
        source is not None and _shape(source, number) for source, number in cast(Any, node).next_functions
    ]
    out = _shape(node, 0)
    if math.prod(out) == 0 or out not in given:
        return False

    def identity(grad_inputs: Any, grad_outputs: Any) -> Any:
        return tuple(
            grad_outputs[0] if shape == out else grad for shape, grad in zip(given, grad_inputs, strict=True)
        )

    cast(Any, node).register_hook(identity)
    return True


def _shape(node: Any, number: int) -> tuple[int, ...]:
    return tuple(node._input_metadata[number].shape)
