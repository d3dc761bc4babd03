"""FLOPs of a model by torch's own counter, on shapes alone: nothing is computed and weights need no values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import FlopCounterMode

from vitattack.models.victim import Victim, frozen


def count_forward(victim: Victim) -> tuple[int, int]:
    """Return the FLOPs of a forward of one image by torch's own counter, and its softmaxes; nothing is computed."""
    softmaxes = SoftmaxCounter()
    with frozen(victim), torch.no_grad(), FlopCounterMode(display=False) as counter, softmaxes:
        torch.func.functional_call(victim, _on_meta(victim), (victim.grey().to("meta"),))
    return int(counter.get_total_flops()), softmaxes.count


def count_forward_and_backward(victim: Victim) -> int:
    """Return the FLOPs of a forward and of the gradient of its sum; parameters are frozen, so theirs are not counted."""
    with frozen(victim), FlopCounterMode(display=False) as counter:
        x = victim.grey().to("meta").requires_grad_()
        torch.autograd.grad(torch.func.functional_call(victim, _on_meta(victim), (x.clone(),)).sum(), x)
    return int(counter.get_total_flops())


def _on_meta(victim: Victim) -> dict[str, Tensor]:
    tensors = dict([*victim.named_parameters(), *victim.named_buffers()])
    return {name: tensor.detach().to("meta") for name, tensor in tensors.items()}


class SoftmaxCounter(TorchFunctionMode):
    """Counts calls that normalise by softmax, whether they are attention or not."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        self.count += "softmax" in name or "attention" in name
        return func(*args, **(kwargs or {}))


class ShapesOnly(TorchFunctionMode):
    """Around the making of a model: weights are shapes without values, constants of the architecture are real."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        return func(*args, **({**given, "device": "meta"} if func is torch.empty else given))


class ZerosForShapes(TorchFunctionMode):
    """Around a forward of such a model: operations on weights without values return zeros of the right shape."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if not any(t.is_meta for t in tree_leaves((args, given)) if isinstance(t, Tensor)):
            return func(*args, **given)
        if getattr(func, "__name__", "").endswith("_") and not args[0].is_meta:  # in place
            return args[0]
        meta_args, meta_kwargs = tree_map_only(Tensor, lambda t: t.to("meta"), (args, given))
        out = func(*meta_args, **meta_kwargs)
        return tree_map_only(Tensor, lambda t: torch.zeros(t.shape, dtype=t.dtype), out)
