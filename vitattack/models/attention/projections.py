"""Which rows of which tensors make the queries and keys of an attention module, by the customary names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor, nn

# A projection by the name it usually has, and what its rows make in equal parts.
MAKES = {
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
    """The weights and biases that make queries: scaled by s, they scale the attention scores by s."""
    return [Rows(tensor, len(tensor) // len(makes)) for makes, tensor in _projections(module) if makes.startswith("q")]


def query_and_key_weights(module: nn.Module) -> list[Rows]:
    """The weights, without biases, that make queries or keys."""
    return [
        Rows(tensor, len(tensor) * len(makes.replace("v", "")) // len(makes))
        for makes, tensor in _projections(module)
        if tensor.ndim > 1
    ]


def _projections(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """`qkv.weight`, `in_proj_weight` and `q_bias` alike: what the rows make, and the tensor."""
    for name, tensor in module.named_parameters():
        *words, kind = re.sub(r"_(weight|bias)$", r".\1", name).split(".")
        makes = next((MAKES[word] for word in words if word in MAKES), None)
        if makes is not None and kind in ("weight", "bias"):
            yield makes, tensor
