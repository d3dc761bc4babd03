"""The block around an attention layer, and the heads and head axis of its scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads")  # customary attributes of attention modules


def block_of(stack: Sequence[str], modules: Mapping[str, nn.Module]) -> str:
    """Return the innermost item of a container around the layer, else the layer if it is one, else its caller.

    `stack` holds the names of the modules that were executing, the layer last.
    """
    items = [name for name in stack if name and isinstance(modules.get(name.rpartition(".")[0]), CONTAINERS)]
    around = [name for name in items if name != stack[-1]]
    return around[-1] if around else items[-1] if items else stack[max(0, len(stack) - 2)]


def heads_of(module: nn.Module, shape: Sequence[int], batch: int) -> tuple[int, int | None]:
    """Return the number of heads and their axis in scores of this shape, None if they are folded into the first one.

    The module's own count holds if the scores have such an axis; else heads are on the axis before queries and keys.
    """
    declared = next((int(getattr(module, name)) for name in HEAD_COUNTS if hasattr(module, name)), 0)
    if declared:
        axis = next((a for a in range(len(shape) - 3, 0, -1) if shape[a] == declared), None)
        if axis is not None:
            return declared, axis
        folded = declared > 1 and shape[0] % (batch * declared) == 0
        return (declared, None) if folded else (1, None)
    return (shape[-3], len(shape) - 3) if len(shape) > 3 else (1, None)
