"""Attention that no function mode can see: modules that torch runs outside Python."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

ATTENTION = ("aten::softmax", "aten::_softmax", "aten::scaled_dot_product_attention")
TRACED = "it cannot be seen inside a traced module: give the Python module that was traced or scripted"


def unseen_modules(modules: Mapping[str, nn.Module]) -> list[tuple[str, str]]:
    """Return (module, reason) for every softmax in the graphs of traced and scripted modules."""
    found: list[tuple[str, str]] = []
    traced = [name for name, module in modules.items() if isinstance(module, torch.jit.ScriptModule)]
    for name in traced:
        if any(name != other and (other == "" or name.startswith(f"{other}.")) for other in traced):
            continue
        found += [(name, TRACED)] * _softmaxes(modules[name])
    return found


def _softmaxes(module: nn.Module) -> int:
    try:
        graph = str(module.inlined_graph)
    except RuntimeError:  # a script without a forward
        return 0
    return sum(graph.count(f" {name}(") for name in ATTENTION)
