"""Attention over the image: what the class token attends to, or what patches receive, for each layer that has either."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from vitattack.core.errors import UsageError
from vitattack.models.attention.attention_map import AttentionLayer, AttentionMap
from vitattack.models.attention.tap import AttentionTap, Seen
from vitattack.models.blocks.restricted import grid_layers
from vitattack.models.blocks.tokens import Tokens, block_tokens
from vitattack.models.victim import Victim, View, frozen


class Readable(NamedTuple):
    """A layer whose attention is a map: of the class token, whose query is in row `query`, or received by patches."""

    tokens: Tokens
    kind: Literal["class", "received"]
    query: int
    rows: int  # queries of an image


def readable_layers(victim: Victim, layers: AttentionMap) -> dict[int, Readable]:
    """The layers that attend to every patch from a class token or from every patch; windows and channels are left out."""
    found = {}
    for number, received in received_layers(victim, layers).items():
        known = received.tokens.class_token
        found[number] = received if known is None else received._replace(kind="class", query=known)
    others = [layer for layer in layers.layers if layer.number not in found]
    if not others:
        return found
    tokens_of = block_tokens(victim, list(dict.fromkeys(layer.block for layer in layers.layers)))
    shapes: dict[int, torch.Size] = {}

    def look(seen: Seen) -> None:
        shapes[seen.layer.number] = seen.by_head(seen.scores()).shape

    with frozen(victim), torch.no_grad(), AttentionTap(layers, observe=look):
        victim(victim.grey())
    for layer in others:
        known_tokens, shape = tokens_of[layer.block], shapes.get(layer.number)
        if known_tokens is None or known_tokens.class_token is None or shape is None:
            continue
        if shape[1:] == (1, known_tokens.count):  # one query per image: class attention
            found[layer.number] = Readable(known_tokens, "class", 0, 1)
    return dict(sorted(found.items()))


def received_layers(victim: Victim, layers: AttentionMap) -> dict[int, Readable]:
    """The layers that attend from every token to every patch, for what patches receive in them."""
    return {
        number: Readable(tokens, "received", 0, tokens.count)
        for number, tokens in grid_layers(victim, layers).items()
        if layers.layers[number].heads_first is False or layers.layers[number].heads == 1
    }


def require_readable(layers: AttentionMap, found: Mapping[int, Readable], name: str) -> None:
    layers.require("there is no attention to draw")
    if not found:
        raise UsageError(
            f"attention of '{name}' is in windows, over pooled keys or over channels, so it is no map over the image: "
            "eigencam takes any model"
        )


@torch.no_grad()
def attended(victim: Victim, layers: AttentionMap, readable: Mapping[int, Readable], x: Tensor) -> dict[int, Tensor]:
    """(B, rows, columns) of attention to patches, a mean over heads, for each readable layer."""
    found: dict[int, Tensor] = {}

    def look(seen: Seen) -> None:
        known = readable.get(seen.layer.number)
        if known is None:
            return
        p = seen.by_head(seen.scores().softmax(-1))
        p = p.reshape(p.shape[0], len(x), known.rows, p.shape[-1]).mean(0)
        patches = p[:, known.query] if known.kind == "class" else p.mean(1)
        found[seen.layer.number] = patches[:, known.tokens.prefix :].reshape(len(x), *known.tokens.grid)

    with frozen(victim), AttentionTap(layers, observe=look):
        victim(x)
    return found


class AttentionRead(View):
    """The victim, with what patches receive in some layers kept from each forward, to be differentiated."""

    def __init__(self, victim: Victim, layers: AttentionMap, readable: Mapping[int, Readable]) -> None:
        super().__init__(victim)
        self.layers, self.readable = layers, readable
        self.received: list[Tensor] = []  # (B, rows, columns) of each layer: means over heads and queries

    def forward(self, x: Tensor) -> Tensor:
        self.received = []

        def read(layer: AttentionLayer, scores: Tensor) -> Tensor:
            p, tokens = scores.softmax(-1), self.readable[layer.number].tokens
            by_head = p.movedim(layer.head_axis, 1) if layer.head_axis is not None else p
            mean = by_head.reshape(len(x), -1, *p.shape[-2:]).mean((1, 2))
            self.received.append(mean[:, tokens.prefix :].view(len(x), *tokens.grid))
            return p

        with AttentionTap(self.layers, replacement=read, only=self.readable):
            logits: Tensor = self.victim(x)
        return logits
