"""Activations over positions of the image, as class activation maps are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitattack.core.errors import UsageError
from vitattack.models.attention.functions import function_name
from vitattack.models.blocks.tokens import Tokens
from vitattack.models.victim import Victim

NORMS = {"layer_norm", "rms_norm", "group_norm", "batch_norm"}


class _FirstNorm(TorchFunctionMode):
    """Keeps what a block normalises first, else its input."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = False
        self.kept: Tensor | None = None
        self.given: Tensor | None = None

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.inside, self.kept = True, None
        self.given = next(value for value in [*args, *kwargs.values()] if isinstance(value, Tensor))

    def leave(self, module: nn.Module, args: Any, out: Any) -> None:
        self.inside = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self.inside and self.kept is None and function_name(func) in NORMS and isinstance(out, Tensor):
            self.kept = out
        return out


@torch.no_grad()
def token_activations(victim: Victim, block: str, tokens: Tokens, x: Tensor) -> Tensor:
    """(B, D, rows, columns) of the tokens that a block normalises first, without prefix tokens."""
    mode = _FirstNorm()
    module = victim.get_submodule(block)
    handles = [
        module.register_forward_pre_hook(mode.enter, with_kwargs=True),
        module.register_forward_hook(mode.leave),
    ]
    try:
        with mode:
            victim(x)
    finally:
        for handle in handles:
            handle.remove()
    found = (
        mode.kept
        if mode.kept is not None and mode.given is not None and mode.kept.dim() == mode.given.dim()
        else mode.given
    )
    assert found is not None
    flat = found.flatten(1, 2) if found.dim() == 4 else found
    if flat.shape[1] != tokens.count:
        raise UsageError(
            f"block '{block}' of '{victim.name}' has {flat.shape[1]} tokens, not {tokens.count}: probe it again"
        )
    return flat[:, tokens.prefix :].transpose(1, 2).reshape(len(flat), -1, *tokens.grid)


@torch.no_grad()
def map_activations(victim: Victim, blocks: Sequence[str], x: Tensor) -> Tensor:
    """(B, C, h, w) that the last of some blocks returns, of those that return maps of more than one position."""
    kept: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, args: Any, out: Any) -> None:
            if isinstance(out, Tensor) and out.dim() == 4 and out.shape[2] * out.shape[3] > 1:
                kept[name] = out

        return hook

    handles = [victim.get_submodule(name).register_forward_hook(keep(name)) for name in blocks]
    try:
        victim(x)
    finally:
        for handle in handles:
            handle.remove()
    if not kept:
        raise UsageError(
            f"no residual block of '{victim.name}' returns a map over the image, so there is nothing to draw"
        )
    return kept[next(name for name in reversed(blocks) if name in kept)]
