"""`StraightThrough`: the victim, to the bit, with the gradients of some of its parts replaced by that of the identity."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitattack.models.gradients.custom_functions import go_around_functions
from vitattack.models.gradients.substitutes import Kind, SubstituteMode
from vitattack.models.gradients.with_gradient_of import with_gradient_of
from vitattack.models.victim import Victim, View


@dataclass(frozen=True)
class Detour:
    """Where gradients pass by: kinds of calls, modules by class name, and the front, all up to a module's input."""

    kinds: frozenset[Kind] = frozenset()
    modules: tuple[str, ...] = ()
    front: str | None = None

    def __str__(self) -> str:
        parts = [*sorted(self.kinds), *self.modules, *([f"front of {self.front}"] if self.front else [])]
        return ", ".join(parts)


class StraightThrough(View):
    """The victim with straight-through gradients. Its logits are the victim's own, so a verdict costs no forward."""

    verdict_forwards = 0

    def __init__(self, victim: Victim, detour: Detour) -> None:
        super().__init__(victim)
        self.detour = detour
        self.seen: frozenset[Kind] = frozenset()  # kinds met in the last forward with a gradient

    def forward(self, x: Tensor) -> Tensor:
        if not (torch.is_grad_enabled() and x.requires_grad):
            logits: Tensor = self.victim(x)
            return logits
        mode = SubstituteMode(self.detour.kinds)
        with ExitStack() as stack:
            for name, module in self.victim.named_modules():
                if name == self.detour.front:
                    hook = module.register_forward_pre_hook(lambda _, given: _fronted(given, x))
                    stack.callback(hook.remove)
                if type(module).__name__ in self.detour.modules:
                    stack.callback(module.register_forward_hook(_around).remove)
            stack.enter_context(mode)
            logits = self.victim(x)
        mode.selections.clear()
        if "function" in self.detour.kinds:
            mode.seen["function"] = go_around_functions(logits)
        self.seen = frozenset(kind for kind, count in mode.seen.items() if count)
        return logits

    def verdict(self, x: Tensor, logits: Tensor) -> Tensor:
        return logits


def _fronted(given: tuple[Any, ...], x: Tensor) -> tuple[Any, ...]:
    """A module's inputs with the images' gradient passed straight to the first of them."""
    return (with_gradient_of(given[0], x), *given[1:])


def _around(module: nn.Module, given: Sequence[Any], out: Any) -> Any:
    """An output with the gradient of the identity on the module's input, if their shapes agree."""
    source = given[0] if given else None
    if isinstance(source, Tensor) and isinstance(out, Tensor) and source.shape == out.shape and source.requires_grad:
        return with_gradient_of(out, source)
    return out
