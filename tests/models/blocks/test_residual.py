"""Lesions by probing: what is found in each family, and models without nothing, something and everything."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.models.blocks.families import cnn, plain_vit, windowed_swin, xcit
from vitattack.core.errors import UsageError, VitattackError
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.blocks.convolutional import adding_modules
from vitattack.models.blocks.residual import Block, Lesioned, Removal, require_branches, residual_blocks
from vitattack.models.victim import Victim

X = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(4))


def blocks_of(victim: Victim) -> tuple[Block, ...]:
    return residual_blocks(victim, X, attention_layers(victim, X))


def everything(blocks: tuple[Block, ...]) -> frozenset[Removal]:
    return frozenset().union(*(block.removals("block") for block in blocks))


@torch.no_grad()
def answers(victim: nn.Module, x: Tensor = X) -> Tensor:
    return victim(x)  # type: ignore[no-any-return]


def test_branches_of_every_family() -> None:
    both = ("attention", "mlp")
    assert [block.branches for block in blocks_of(plain_vit())] == [both] * 3
    assert [block.branches for block in blocks_of(plain_vit("avg"))] == [both] * 3
    assert [block.branches for block in blocks_of(windowed_swin())] == [both] * 4
    local = ("attention", "convolution", "mlp")
    assert [block.branches for block in blocks_of(xcit())] == [local, local, both, both]
    assert blocks_of(cnn()) == ()


@pytest.mark.parametrize("victim", [plain_vit(), windowed_swin(), xcit()], ids=lambda victim: victim.name)
def test_a_lesion_of_nothing_changes_nothing_to_the_bit(victim: Victim) -> None:
    plain = answers(victim)
    assert torch.equal(answers(Lesioned(victim, ())), plain)
    for block in blocks_of(victim):
        for part in ("attention", "mlp", "block"):
            assert not torch.equal(answers(Lesioned(victim, block.removals(part))), plain), (block.name, part)
    assert torch.equal(answers(victim), plain), "hooks are gone"


@torch.no_grad()
def test_a_lesion_of_everything_is_the_embedding_through_the_head() -> None:
    victim = plain_vit()
    model = victim.model
    embedded = model._pos_embed(model.patch_embed(X))  # type: ignore[operator]
    expected = model.forward_head(model.norm(model.norm_pre(embedded)))  # type: ignore[operator]
    assert torch.equal(answers(Lesioned(victim, everything(blocks_of(victim)))), expected)

    victim = windowed_swin()
    model = victim.model
    x = model.patch_embed(X)  # type: ignore[operator]
    for layer in model.layers:  # type: ignore[union-attr]
        x = layer.downsample(x)  # type: ignore[union-attr, operator]
    expected = model.forward_head(model.norm(x))  # type: ignore[operator]
    assert torch.equal(answers(Lesioned(victim, everything(blocks_of(victim)))), expected)


@torch.no_grad()
def test_one_branch_gone_is_the_block_without_it() -> None:
    victim = plain_vit()
    model = victim.model
    first, second, third = model.blocks  # type: ignore[misc]
    x = first(model._pos_embed(model.patch_embed(X)))  # type: ignore[operator]
    without_attention = x + second.mlp(second.norm2(x))
    without_mlp = x + second.attn(second.norm1(x))
    for part, middle in (("attention", without_attention), ("mlp", without_mlp), ("block", x)):
        expected = model.forward_head(model.norm(third(middle)))  # type: ignore[operator]
        assert torch.equal(answers(Lesioned(victim, blocks_of(victim)[1].removals(part))), expected)  # type: ignore[arg-type]


class InPlace(nn.Module):
    """A block whose sums are written into the branch, or into the stream, with its operands either way around."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.norm, self.qkv = nn.LayerNorm(12), nn.Linear(12, 36)
        self.mlp = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 12))
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        branch = (q @ k.transpose(1, 2) / 12**0.5).softmax(-1) @ v
        if self.how == "into branch":
            branch += x
            x = branch
        elif self.how == "add_":
            branch.add_(x)
            x = branch
        elif self.how == "post-norm":
            x = self.norm(x + branch)
        else:
            x = torch.add(branch, other=x)
        return self.mlp(x) + x  # type: ignore[no-any-return]


class Stack(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([InPlace(how), InPlace(how)])
        torch.manual_seed(2)
        self.head = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.unfold(2, 2, 16).unfold(3, 2, 16).flatten(4).permute(0, 2, 3, 1, 4).flatten(3).flatten(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("how", ["into branch", "add_", "post-norm", "keywords"])
def test_sums_are_recognised_however_they_are_written(how: str) -> None:
    victim = Victim(Stack(how), name="stack", num_classes=10, input_size=32).eval()
    blocks = blocks_of(victim)
    assert [block.branches for block in blocks] == [("attention", "mlp")] * 2
    assert torch.equal(answers(Lesioned(victim, ())), answers(victim))
    x = X.unfold(2, 2, 16).unfold(3, 2, 16).flatten(4).permute(0, 2, 3, 1, 4).flatten(3).flatten(1, 2)
    stack: Stack = victim.model  # type: ignore[assignment]
    if how == "post-norm":
        for block in stack.blocks:
            x = block.norm(x)  # type: ignore[union-attr, operator]
    with torch.no_grad():
        assert torch.equal(answers(Lesioned(victim, everything(blocks))), stack.head(x.mean(1)))


def test_models_without_blocks_are_refused() -> None:
    with pytest.raises(UsageError, match="model 'cnn' has no attention blocks"):
        require_branches(blocks_of(cnn()), "cnn")
    with pytest.raises(UsageError, match="block 'a' of model 'm' adds nothing"):
        require_branches([Block(0, "a", ())], "m")
    with pytest.raises(VitattackError, match="branch 7 of block 'model.blocks.0' of 'vit-token' did not run"):
        answers(Lesioned(plain_vit(), [Removal("model.blocks.0", 7)]))


def test_residual_blocks_of_a_cnn() -> None:
    assert adding_modules(cnn(), X) == tuple(f"model.{number}" for number in range(3, 8))
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))
    assert adding_modules(Victim(plain, name="plain", num_classes=10, input_size=32), X) == ()
