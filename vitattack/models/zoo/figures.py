"""What a zoo entry costs to run, known without its weights and without memory for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import FlopCounterMode

from vitattack.core.errors import UsageError
from vitattack.core.words import printable
from vitattack.models.attention.map import AttentionLayer
from vitattack.models.attention.probe import attention_layers
from vitattack.models.victim import Victim, frozen
from vitattack.models.zoo.entry import ZooEntry
from vitattack.models.zoo.load import build_victim


@dataclass(frozen=True)
class Figures:
    """Of one image; a multiplication and an addition are two FLOPs."""

    parameters: int
    flops: int
    attention: tuple[AttentionLayer, ...]

    def json(self) -> dict[str, Any]:
        layers = [{"name": a.name, "heads": a.heads, "fused": a.fused, "kind": a.kind} for a in self.attention]
        return {"parameters": self.parameters, "flops": self.flops, "attention": layers}


def model_figures(entry: ZooEntry) -> Figures:
    """Figures of the entry's model at its own input size."""
    with Unfilled():
        victim = build_victim(entry).eval()
    parameters = sum(p.numel() for p in victim.parameters())
    try:
        cost, softmaxes = count_forward(victim)
    except Exception as error:  # an architecture meets an input that is not its own with whatever breaks first
        raise UsageError(
            f"'{entry.id}' cannot be run at {entry.input} px ({printable(str(error))}): correct its input and arch_kwargs"
        ) from error
    if not softmaxes:  # a CNN: following its large feature maps would find nothing
        return Figures(parameters, cost, ())
    with Hollow():
        return Figures(parameters, cost, attention_layers(victim, victim.grey()).layers)


def count_forward(victim: Victim) -> tuple[int, int]:
    """FLOPs of one forward of one image by torch's own counter, and its softmaxes; nothing is computed."""
    seen = Softmaxes()
    with frozen(victim), torch.no_grad(), FlopCounterMode(display=False) as counter, seen:
        tensors = dict([*victim.named_parameters(), *victim.named_buffers()])
        there = {name: tensor.to("meta") for name, tensor in tensors.items()}
        torch.func.functional_call(victim, there, (victim.grey().to("meta"),))
    return int(counter.get_total_flops()), seen.count


class Softmaxes(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        self.count += "softmax" in name or "attention" in name
        return func(*args, **(kwargs or {}))


class Unfilled(TorchFunctionMode):
    """While a model is built: weights are shapes without values, what is derived from the architecture is real."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        return func(*args, **({**given, "device": "meta"} if func is torch.empty else given))


class Hollow(TorchFunctionMode):
    """While it runs: whatever touches a weight without values gives zeros of the right shape."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if not any(t.is_meta for t in tree_leaves((args, given)) if isinstance(t, Tensor)):
            return func(*args, **given)
        if getattr(func, "__name__", "").endswith("_") and not args[0].is_meta:  # in place
            return args[0]
        there = tree_map_only(Tensor, lambda t: t.to("meta"), (args, given))
        out = func(*there[0], **there[1])
        return tree_map_only(Tensor, lambda t: torch.zeros(t.shape, dtype=t.dtype), out)
