"""The value of one tensor, to the bit, with the gradient of another."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd import Function


class WithGradientOf(Function):
    """The first tensor forward, the second one backward."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, source: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        return None, grads[0]


def with_gradient_of(value: Tensor, source: Tensor) -> Tensor:
    """Return `value`, passing its gradient to `source` as if it were the identity of it."""
    result: Tensor = WithGradientOf.apply(value.detach(), source)
    return result


def learns(value: object) -> bool:
    """Whether a value is a tensor of floats that gradients flow into."""
    return isinstance(value, Tensor) and value.requires_grad and value.is_floating_point()
