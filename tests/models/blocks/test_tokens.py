"""Prefix tokens, grids and class tokens by probing; attention limited to pairs of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.models.blocks.families import cnn, plain_vit, windowed_swin, xcit
from vitattack.core.errors import UsageError
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.blocks.restricted import (
    Restricted,
    class_token_pairs,
    grid_layers,
    local_pairs,
    random_pairs,
    require_grid_layers,
)
from vitattack.models.blocks.tokens import Tokens, block_tokens
from vitattack.models.victim import Victim

X = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(4))
TOKENS = Tokens(1, (4, 4), 0)


@torch.no_grad()
def answers(victim: nn.Module) -> Tensor:
    return victim(X)  # type: ignore[no-any-return]


def tokens_of(victim: Victim) -> list[Tokens | None]:
    layers = attention_layers(victim, X)
    return list(block_tokens(victim, list(dict.fromkeys(layer.block for layer in layers.layers))).values())


def test_tokens_of_every_family() -> None:
    assert tokens_of(plain_vit()) == [Tokens(1, (4, 4), 0)] * 3
    assert tokens_of(plain_vit("avg")) == [Tokens(0, (4, 4), None)] * 3
    assert tokens_of(plain_vit(registers=2)) == [Tokens(3, (4, 4), 0)] * 3
    assert tokens_of(windowed_swin()) == [Tokens(0, (16, 16))] * 2 + [Tokens(0, (8, 8))] * 2
    assert tokens_of(xcit()) == [Tokens(0, (2, 2))] * 2 + [Tokens(1, (2, 2), 0)] * 2


class Shuffled(nn.Module):
    """A ViT whose patches are in another order than in the image."""

    def __init__(self) -> None:
        super().__init__()
        import copy

        self.vit = copy.deepcopy(plain_vit("avg").model)
        embed = self.vit.patch_embed  # type: ignore[union-attr]
        embed.register_forward_hook(lambda module, args, out: out.flip(1))  # type: ignore[union-attr, operator]

    def forward(self, x: Tensor) -> Tensor:
        return self.vit(x)  # type: ignore[no-any-return, operator]


def test_patches_in_another_order_are_noticed() -> None:
    victim = Victim(Shuffled(), name="shuffled", num_classes=10, input_size=32).eval()
    assert tokens_of(victim) == [None] * 3


def test_pairs_by_hand() -> None:
    pairs = local_pairs(Tokens(1, (2, 3)), 1)
    assert pairs[0].all() and pairs[:, 0].all()
    rows = ["110110", "111111", "011011", "110110", "111111", "011011"]
    assert ["".join(str(int(v)) for v in row) for row in pairs[1:, 1:]] == rows
    assert bool(local_pairs(TOKENS, 3).all()) and not bool(local_pairs(TOKENS, 2).all())
    assert torch.equal(local_pairs(TOKENS, 0), class_token_pairs(TOKENS))


def test_the_random_control_has_the_same_size_and_is_fixed_by_its_seed() -> None:
    near = local_pairs(TOKENS, 1)
    control = random_pairs(TOKENS, near, 0)
    assert int(control.sum()) == int(near.sum())
    assert control[0].all() and control[:, 0].all() and control.diagonal().all()
    assert not torch.equal(control, near)
    assert torch.equal(control, random_pairs(TOKENS, near, 0))
    assert not torch.equal(control, random_pairs(TOKENS, near, 1))


@pytest.mark.parametrize("pool", ["token", "avg"])
def test_the_whole_grid_changes_nothing_and_less_changes_something(pool: str) -> None:
    victim = plain_vit(pool)
    layers = attention_layers(victim, X)
    found = grid_layers(victim, layers)
    assert list(found) == [0, 1, 2]
    plain = answers(victim)
    whole = Restricted(victim, layers, {number: local_pairs(tokens, 3) for number, tokens in found.items()})
    assert torch.equal(answers(whole), plain)
    part = Restricted(victim, layers, {number: local_pairs(tokens, 2) for number, tokens in found.items()})
    assert not torch.allclose(answers(part), plain, atol=1e-4)
    assert torch.equal(answers(victim), plain)


@torch.no_grad()
def test_a_restricted_layer_is_attention_with_a_mask() -> None:
    victim = plain_vit()
    layers = attention_layers(victim, X)
    pairs = local_pairs(TOKENS, 1)
    model = victim.model
    first, second, third = model.blocks  # type: ignore[misc]
    x = first(model._pos_embed(model.patch_embed(X)))  # type: ignore[operator]
    x = x + second.attn(second.norm1(x), attn_mask=pairs)
    expected = model.forward_head(model.norm(third(x + second.mlp(second.norm2(x)))))  # type: ignore[operator]
    assert torch.allclose(answers(Restricted(victim, layers, {1: pairs})), expected, atol=1e-5)


def test_other_families_are_refused_in_one_line() -> None:
    for victim, words in (
        (windowed_swin(), "4 of 4 attention layers of 'swin' do not attend from every patch to every patch"),
        (xcit(), r"4 of 4 attention layers of 'xcit' .*channels"),
        (cnn(), "'cnn' has no attention softmax, so there is nothing to restrict"),
    ):
        layers = attention_layers(victim, X)
        with pytest.raises(UsageError, match=words) as caught:
            require_grid_layers(layers, grid_layers(victim, layers), victim.name)
        assert "\n" not in str(caught.value)
