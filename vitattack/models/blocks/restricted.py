"""Attention limited to some pairs of positions, through the tap: local windows, equally many random pairs, class token only.

The restriction of "Understanding Robustness of Transformers for Image Classification" (Bhojanapalli et al., ICCV 2021).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitattack.core.errors import UsageError
from vitattack.models.attention.attention_map import AttentionLayer, AttentionMap
from vitattack.models.attention.tap import AttentionTap, Seen
from vitattack.models.blocks.tokens import Tokens, block_tokens
from vitattack.models.victim import Victim, View, frozen

Allowed = Mapping[int, Tensor]  # by the number of a layer: (positions, positions), True where a query may see a key


def local_pairs(tokens: Tokens, distance: int) -> Tensor:
    """Pairs of patches at most so far apart in rows and in columns; prefix tokens see all and are seen by all."""
    rows, columns = tokens.grid
    at = torch.arange(rows * columns)
    row, column = at // columns, at % columns
    near = ((row[:, None] - row).abs() <= distance) & ((column[:, None] - column).abs() <= distance)
    return _with_prefix(near, tokens.prefix)


def random_pairs(tokens: Tokens, like: Tensor, seed: int) -> Tensor:
    """As many pairs of patches as in `like`, at random but for the diagonal, which stays open."""
    patches = like[tokens.prefix :, tokens.prefix :]
    off = ~torch.eye(len(patches), dtype=torch.bool)
    order = np.random.Generator(np.random.Philox(key=seed)).permutation(int(off.sum()))
    shuffled = patches.clone()
    shuffled[off] = patches[off][torch.from_numpy(order)]
    return _with_prefix(shuffled, tokens.prefix)


def class_token_pairs(tokens: Tokens) -> Tensor:
    """Every patch sees prefix tokens and itself only."""
    return _with_prefix(torch.eye(tokens.grid[0] * tokens.grid[1], dtype=torch.bool), tokens.prefix)


def _with_prefix(patches: Tensor, prefix: int) -> Tensor:
    pairs = torch.ones(prefix + len(patches), prefix + len(patches), dtype=torch.bool)
    pairs[prefix:, prefix:] = patches
    return pairs


class Restricted(View):
    """A victim whose attention sees the allowed pairs of positions only; layers that are not named see all."""

    def __init__(self, victim: Victim, layers: AttentionMap, allowed: Allowed) -> None:
        super().__init__(victim)
        self.layers = layers
        self.allowed = {number: pairs for number, pairs in allowed.items() if not bool(pairs.all())}

    def forward(self, x: Tensor) -> Tensor:
        if not self.allowed:
            return self.victim(x)  # type: ignore[no-any-return]
        with AttentionTap(self.layers, replacement=self._masked, only=self.allowed):
            logits: Tensor = self.victim(x)
        return logits

    def _masked(self, layer: AttentionLayer, scores: Tensor) -> Tensor:
        pairs = self.allowed[layer.number].to(scores.device)
        return scores.masked_fill(~pairs, -math.inf).softmax(-1)


def grid_layers(victim: Victim, layers: AttentionMap) -> dict[int, Tokens]:
    """The layers that attend from every token of a grid to every other, in call order, each with its tokens.

    That rows and columns of the scores are positions is tested: one token changed at the input of the block changes its
    own row and its own column and nothing else. Attention over channels and in windows fails this.
    """
    names = list(dict.fromkeys(layer.block for layer in layers.layers))
    if not names:
        return {}
    tokens = block_tokens(victim, names)
    x = torch.rand(1, victim.channels, *victim.size, generator=torch.Generator().manual_seed(2)).to(victim.grey())
    plain = _scores(victim, layers, x)
    found: dict[int, Tokens] = {}
    for name in names:
        known = tokens[name]
        inside = [layer.number for layer in layers.layers if layer.block == name]
        if known is None or not any(_square(plain.get(number), known.count) for number in inside):
            continue
        changed = _scores(victim, layers, x, victim.get_submodule(name), known)
        for number in inside:
            if _square(plain.get(number), known.count) and _is_cross(plain[number], changed[number], known.count // 2):
                found[number] = known
    return found


def require_grid_layers(layers: AttentionMap, found: Mapping[int, Tokens], name: str) -> None:
    """Refuse models of which some layers do not attend over a whole grid of tokens."""
    layers.require("there is nothing to restrict")
    others = [layer.name for layer in layers.layers if layer.number not in found]
    if others:
        raise UsageError(
            f"{len(others)} of {len(layers)} attention layers of '{name}' do not attend from every patch to every patch, "
            f"such as '{others[0]}' (windows, pooled keys or channels), so they cannot be restricted: choose a plain ViT"
        )


def _square(scores: Tensor | None, count: int) -> bool:
    return scores is not None and scores.dim() >= 3 and scores.shape[-2:] == (count, count)


def _scores(
    victim: Victim, layers: AttentionMap, x: Tensor, block: nn.Module | None = None, tokens: Tokens | None = None
) -> dict[int, Tensor]:
    """The scores of every layer for one image, with the middle token changed at the input of a block if one is named."""
    seen: dict[int, Tensor] = {}

    def look(layer: Seen) -> None:
        seen[layer.layer.number] = layer.scores()

    def change(module: nn.Module, args: Sequence[Any]) -> Any:
        first = args[0].clone()
        flat = first.view(1, -1, first.shape[-1])
        middle = flat.shape[1] // 2
        noise = torch.rand(flat.shape[-1], generator=torch.Generator().manual_seed(3)).to(flat)
        flat[:, middle] += noise * flat.abs().mean()
        return (first, *args[1:])

    handle = block.register_forward_pre_hook(change) if block is not None else None
    try:
        with frozen(victim), torch.no_grad(), AttentionTap(layers, observe=look):
            victim(x)
    finally:
        if handle is not None:
            handle.remove()
    return seen


def _is_cross(plain: Tensor, changed: Tensor, token: int) -> bool:
    if plain.shape != changed.shape:
        return False
    moved = (plain - changed).nan_to_num().abs().flatten(0, -3).amax(0)
    most = moved.amax()
    row, column = moved[token].amax(), moved[:, token].amax()
    rest = moved.clone()
    rest[token] = 0
    rest[:, token] = 0
    return (
        bool(row > 1e-3 * most) and bool(column > 1e-3 * most) and bool(rest.amax() <= 1e-3 * most) and bool(most > 0)
    )
