"""Substitute gradients, call by call: a forward pass that is the model's own to the bit, with another backward.

Rounding, thresholds, selections and clamps have gradients that are zero almost everywhere, and custom autograd functions
may return anything. `SubstituteMode` lets gradients pass such calls as if they were the identity (Athalye, Carlini and
Wagner, ICML 2018: BPDA), wherever the model makes them.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from vitattack.models.gradients.thresholds import Selections
from vitattack.models.gradients.with_gradient_of import learns, with_gradient_of

Kind = Literal["rounding", "threshold", "clamp", "function"]
KINDS: tuple[Kind, ...] = get_args(Kind)

ROUNDING = {"round", "floor", "ceil", "trunc", "fix", "sign", "sgn"}
CLAMPS = {"clamp", "clip", "clamp_min", "clamp_max", "hardtanh", "relu6"}


class SubstituteMode(TorchFunctionMode):
    """A mode that replaces the backward of some kinds of calls; `seen` counts those met."""

    def __init__(self, kinds: frozenset[Kind]) -> None:
        super().__init__()
        self.kinds = kinds
        self.seen: Counter[Kind] = Counter()
        self.selections = Selections()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if not torch.is_grad_enabled() or not args:
            return out
        name = getattr(func, "__name__", "").strip("_")
        found: tuple[Kind, Tensor | None] = ("threshold", None)
        if name in ROUNDING and learns(args[0]):
            found = "rounding", with_gradient_of(out, args[0])
        elif name in CLAMPS and learns(args[0]) and out.shape == args[0].shape:
            found = "clamp", with_gradient_of(out, args[0])
        elif "threshold" in self.kinds:
            found = "threshold", self.selections.follow(name, args, kwargs, out)
        kind, replaced = found
        if replaced is None or kind not in self.kinds:
            return out
        self.seen[kind] += 1
        return replaced
