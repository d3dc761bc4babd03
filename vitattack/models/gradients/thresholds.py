"""Selections made by comparing or ranking, whose gradient ends there: followed to where they act on other tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vitattack.models.gradients.with_gradient_of import learns, with_gradient_of

GREATER, LESS = {"gt", "ge", "greater", "greater_equal"}, {"lt", "le", "less", "less_equal"}
RANKINGS = {"topk", "sort", "argsort", "argmax", "argmin", "max", "min", "kthvalue"}
LOGICAL = {"invert", "and", "or", "xor", "logical_not", "logical_and", "logical_or", "bitwise_not"}
PLACED = {"scatter", "one_hot"}
SHAPED = {
    "unsqueeze",
    "squeeze",
    "view",
    "reshape",
    "expand",
    "expand_as",
    "view_as",
    "movedim",
    "permute",
    "transpose",
}
CASTS = {"float", "double", "half", "bfloat16", "to", "type", "type_as"}
PRODUCTS = {"mul", "rmul", "multiply"}
WIDTH = 0.1  # of the slope in place of a step, in deviations of what is compared


class Selections:
    """Masks and indices that follow from tensors with a gradient, and what stands in for the gradient where they act."""

    def __init__(self) -> None:
        # By id; the tensor itself is kept, or its id could be given to another one. With what was compared, if it was.
        self._known: dict[int, tuple[Tensor, Tensor | None]] = {}

    def follow(self, name: str, args: Any, kwargs: Any, out: Any) -> Tensor | None:
        """Take note of a call; its output with a gradient in place of the missing one, if a selection acts there."""
        first, second = args[0], args[1] if len(args) > 1 else None
        if name in GREATER | LESS and (learns(first) or learns(second)):
            self._add(out, first - second if name in GREATER else second - first)
        elif name in RANKINGS and learns(first):
            for part in out if isinstance(out, tuple) else (out,):
                if not part.is_floating_point():
                    self._add(part)
        elif not any(self._knows(value) for value in (*args, *kwargs.values())):
            return None
        elif name in LOGICAL | PLACED:
            self._add(out)
        elif name in SHAPED and self._knows(first):
            compared = self._compared(first)
            self._add(out, None if compared is None else _same_call(compared, name, args, kwargs))
        elif name in CASTS and isinstance(out, Tensor) and out.is_floating_point():
            compared = self._compared(first)
            number = out if compared is None else with_gradient_of(out, _slope(compared))
            self._add(number)
            return number
        elif name in PRODUCTS:
            return _standing_in(out, [second if self._knows(first) else first])
        elif name == "where" and self._knows(first):
            return _standing_in(out, list(args[1:]))
        elif name == "masked_fill" and self._knows(second):
            return _standing_in(out, [first])
        return None

    def clear(self) -> None:
        self._known.clear()

    def _add(self, out: Tensor, compared: Tensor | None = None) -> None:
        self._known[id(out)] = out, compared

    def _knows(self, value: object) -> bool:
        return id(value) in self._known

    def _compared(self, value: Tensor) -> Tensor | None:
        return self._known[id(value)][1] if self._knows(value) else None


def _same_call(tensor: Tensor, name: str, args: Any, kwargs: Any) -> Tensor:
    """The call made on the selection, made on what was compared."""
    result: Tensor = getattr(torch.Tensor, name)(tensor, *args[1:], **kwargs)
    return result


def _slope(compared: Tensor) -> Tensor:
    """A steep sigmoid in place of a step."""
    return torch.sigmoid(compared / (WIDTH * compared.detach().std().clamp_min(1e-12)))


def _standing_in(out: Tensor, options: list[Any]) -> Tensor | None:
    """The output with the gradient of all options of its shape: of those left out, too."""
    sources = [option for option in options if learns(option) and option.shape == out.shape]
    return with_gradient_of(out, sum(sources[1:], sources[0])) if sources else None
