"""Custom autograd functions in a graph, whose backward may be anything."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor
from torch.autograd.function import BackwardCFunction

from vitattack.models.gradients.with_gradient_of import WithGradientOf

OURS: Any = WithGradientOf


def go_around_functions(root: Tensor) -> int:
    """Make gradients pass every custom function in the graph of a tensor as if it were the identity; returns how many."""
    waiting: list[Any] = [root.grad_fn]
    met: set[Any] = set()
    count = 0
    while waiting:
        node = waiting.pop()
        if node is None or node in met:
            continue
        met.add(node)
        if isinstance(node, BackwardCFunction) and not isinstance(node, OURS._backward_cls):
            count += _go_around(node)
        waiting.extend(each for each, _ in node.next_functions)
    return count


def _go_around(node: Any) -> bool:
    """Give a node the backward of the identity on its inputs of the output's shape; False if it has none."""
    given = [None if source is None else _shape(source, number) for source, number in node.next_functions]
    out = _shape(node, 0)
    if math.prod(out) == 0 or out not in given:
        return False

    def identity(grad_inputs: Any, grad_outputs: Any) -> Any:
        return tuple(grad_outputs[0] if shape == out else old for shape, old in zip(given, grad_inputs, strict=True))

    node.register_hook(identity)
    return True


def _shape(node: Any, number: int) -> tuple[int, ...]:
    return tuple(node._input_metadata[number].shape)
