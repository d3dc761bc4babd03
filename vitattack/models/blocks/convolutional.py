"""Residual blocks of any model: the modules that add two tensors which both depend on the image."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitattack.models.attention.attention_map import AttentionMap
from vitattack.models.attention.functions import function_name
from vitattack.models.blocks.residual import ADDITIONS, Block, residual_blocks
from vitattack.models.victim import Victim, frozen


class _Adders(TorchFunctionMode):
    """Notes the innermost running module of every sum of two equally large tensors that depend on the image."""

    def __init__(self) -> None:
        super().__init__()
        self.running: list[str] = []
        self.found: dict[str, None] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function_name(func) in ADDITIONS and self.running:
            given = [each for each in [*args[:2], *kwargs.values()] if isinstance(each, Tensor) and each.requires_grad]
            if len(given) == 2 and given[0].dim() >= 3 and given[0].shape == given[1].shape:
                self.found[self.running[-1]] = None
        return func(*args, **kwargs)


def adding_modules(victim: Victim, x: Tensor) -> tuple[str, ...]:
    """The modules of a model that are residual blocks, in call order; those that hold others of them are left out."""
    modules = {
        name: module for name, module in victim.named_modules() if not isinstance(module, torch.jit.ScriptModule)
    }
    mode = _Adders()

    def enter(name: str) -> Any:
        return lambda module, args: mode.running.append(name)

    def leave(module: nn.Module, args: Any, out: Any) -> None:
        mode.running.pop()

    handles = []
    for name, module in modules.items():
        handles += [module.register_forward_pre_hook(enter(name)), module.register_forward_hook(leave)]
    try:
        with frozen(victim), torch.enable_grad(), mode:
            victim(x[:1].clone().requires_grad_())
    finally:
        for handle in handles:
            handle.remove()
    names = [name for name in mode.found if name not in ("", "model")]
    return tuple(name for name in names if not any(other.startswith(f"{name}.") for other in names))


def blocks_that_add(victim: Victim, layers: AttentionMap) -> tuple[Block, ...]:
    """The blocks around attention, if branches are seen in all of them, else whatever modules add; with their branches."""
    x = victim.grey(2)
    around = residual_blocks(victim, x, layers)
    if around and all(block.branches for block in around):
        return around
    found = residual_blocks(victim, x, layers, adding_modules(victim, x))
    return tuple(block for block in found if block.branches)
