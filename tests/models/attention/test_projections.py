"""The rows that make queries and keys, on modules whose layout is known."""

from __future__ import annotations

import timm
from torch import nn

from vitattack.models.attention.projections import query_and_key_weights, query_rows


class Split(nn.Module):
    """Queries beside keys and values in one, as in PVT, and a norm that is none of them."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.proj = nn.Linear(8, 8), nn.Linear(8, 16, bias=False), nn.Linear(8, 8)
        self.q_norm = nn.LayerNorm(8)


def test_rows_are_those_of_the_layouts_there_are() -> None:
    joint = timm.create_model("vit_tiny_patch16_224", img_size=32, embed_dim=16, depth=1, num_heads=2).blocks[0].attn
    assert [(r.tensor is t, r.length) for r, t in zip(query_rows(joint), joint.qkv.parameters(), strict=True)] == [
        (True, 16),
        (True, 16),
    ]
    (both,) = query_and_key_weights(joint)
    assert both.tensor is joint.qkv.weight and both.length == 32
    torchs = nn.MultiheadAttention(8, 2)
    assert [(r.tensor.shape, r.length) for r in query_rows(torchs)] == [((24, 8), 8), ((24,), 8)]
    assert [r.length for r in query_and_key_weights(torchs)] == [16]
    split = Split()
    assert [r.tensor is t for r, t in zip(query_rows(split), (split.q.weight, split.q.bias), strict=True)] == [True] * 2
    q, k = query_and_key_weights(split)
    assert (q.tensor is split.q.weight, q.length, k.tensor is split.kv.weight, k.length) == (True, 8, True, 8)
    assert query_rows(nn.Linear(8, 8)) == [] == query_and_key_weights(nn.Linear(8, 8))


def test_a_bias_of_queries_alone_belongs_to_them() -> None:
    beit = timm.create_model("beit_base_patch16_224", img_size=32, embed_dim=16, depth=1, num_heads=2).blocks[0].attn
    names = {id(tensor): name for name, tensor in beit.named_parameters()}
    assert [(names[id(r.tensor)], r.length) for r in query_rows(beit)] == [("q_bias", 16), ("qkv.weight", 16)]
