"""The head of a model: the last linear call that makes class scores of features, found by watching one forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from vitattack.models.victim import Victim, frozen

LINEAR = ("linear", "addmm", "matmul", "mm")
Replacement = Callable[[Tensor], Tensor]  # features (B, D) to scores


class Head(NamedTuple):
    """A linear call by its number among those of a forward, and the width of the features it is given."""

    call: int
    width: int


class HeadTap(TorchFunctionMode):
    """Sees the linear calls of a forward that map (B, D) to (B, C), and replaces the output of one."""

    def __init__(self, call: int | None = None, replacement: Replacement | None = None) -> None:
        super().__init__()
        self.call, self.replacement = call, replacement
        self.features: list[Tensor] = []
        self.scores: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        features = _features(func, args, kwargs)
        if features is None:
            return func(*args, **kwargs)
        if self.replacement is not None and len(self.features) == self.call:
            self.features.append(features)
            return self.replacement(features)
        out = func(*args, **kwargs)
        self.features.append(features)
        self.scores.append(out)
        return out


def _features(func: Any, args: Any, kwargs: Any) -> Tensor | None:
    """The features that a call maps linearly, as (B, D); None for any other call."""
    name = getattr(func, "__name__", "").strip("_")
    if name not in LINEAR or kwargs.get("out") is not None:
        return None
    given = args[1] if name == "addmm" and len(args) > 1 else args[0] if args else kwargs.get("input")
    return given if isinstance(given, Tensor) and given.dim() == 2 else None


def find_head(victim: Victim, x: Tensor) -> Head | None:
    """The head: the last linear call of one score per class that all logits are computed from; None if there is none.

    The logits must not see anything else of an image: with the scores replaced by constants, all images get the same.
    """
    with frozen(victim), torch.no_grad(), HeadTap() as tap:
        logits = victim(x)
    fitting = [
        Head(call, features.shape[1])
        for call, (features, scores) in enumerate(zip(tap.features, tap.scores, strict=True))
        if scores.shape == logits.shape and len(features) == len(x)
    ]
    if not fitting:
        return None
    head = fitting[-1]
    for classes in (2, victim.num_classes):
        constant = torch.linspace(-1, 1, classes, device=x.device).expand(len(x), -1)
        try:
            with frozen(victim), torch.no_grad(), HeadTap(head.call, lambda _, fixed=constant: fixed.clone()):  # type: ignore[misc]
                answers = victim(x)
        except (RuntimeError, IndexError, ValueError):
            return None
        if answers.shape != constant.shape or not torch.equal(answers, answers[:1].expand_as(answers)):
            return None
    return head
