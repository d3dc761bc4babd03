"""The projections of an attention module to queries and keys, found by their customary names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor, nn

# Customary names of projections, and what equal parts of their rows project to.
PROJECTS_TO = {
    "qkv": "qkv",
    "in_proj": "qkv",
    "q": "q",
    "q_proj": "q",
    "query": "q",
    "kv": "kv",
    "k": "k",
    "k_proj": "k",
    "key": "k",
}


class Rows(NamedTuple):
    """The first `length` rows of a weight or a bias."""

    tensor: Tensor
    length: int


def query_rows(module: nn.Module) -> list[Rows]:
    """Return the weights and biases that project to queries; scaling them by s scales the attention scores by s."""
    return [
        Rows(tensor, len(tensor) // len(targets)) for targets, tensor in _projections(module) if targets.startswith("q")
    ]


def query_and_key_weights(module: nn.Module) -> list[Rows]:
    """Return the weights, without biases, that project to queries or keys."""
    return [
        Rows(tensor, len(tensor) * len(targets.replace("v", "")) // len(targets))
        for targets, tensor in _projections(module)
        if tensor.ndim > 1
    ]


def _projections(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the targets and the tensor of each projection: `qkv.weight`, `in_proj_weight`, `q_bias` and the like."""
    for name, tensor in module.named_parameters():
        *words, kind = re.sub(r"_(weight|bias)$", r".\1", name).split(".")
        targets = next((PROJECTS_TO[word] for word in words if word in PROJECTS_TO), None)
        if targets is not None and kind in ("weight", "bias"):
            yield targets, tensor
