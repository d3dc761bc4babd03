"""Softmaxes that do not count: without a path to the logits, or over layers and not over positions."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import tiny_vit, toy_pictures
from vitattack.core.errors import UsageError
from vitattack.diagnostics.diagnose import diagnose
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.attention.sample_axes import with_sample_axes
from vitattack.models.attention.tap import AttentionTap
from vitattack.models.passes import counting_passes
from vitattack.models.victim import Victim


class Attention(nn.Module):
    """One head over the pixels of an image."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.qk = nn.Linear(3, 6)
        self.factor = factor

    def forward(self, t: Tensor) -> Tensor:
        q, k = self.qk(t).chunk(2, -1)
        weights: Tensor = (self.factor * q @ k.transpose(-2, -1)).softmax(-1)
        return weights @ t


class WithHead(nn.Module):
    """Used attention, and a pooling head whose output nobody reads."""

    def __init__(self, factor: float = 1.0, *, cut: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.used, self.pool, self.out = Attention(), Attention(factor), nn.Linear(3, 10)
        self.cut = cut

    def forward(self, x: Tensor) -> Tensor:
        t = x.flatten(2).transpose(1, 2)[:, :40]
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.cut):
            t = self.used(t)
        self.pool(t)
        logits: Tensor = self.out(t.mean(1))
        return logits


class DepthResidual(nn.Module):
    """Attention whose input is a weighted sum over the layers before it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.used, self.query, self.out = Attention(), nn.Linear(3, 1), nn.Linear(3, 10)

    def forward(self, x: Tensor) -> Tensor:
        t = x.flatten(2).transpose(1, 2)[:, :40]
        layers = torch.stack([t, self.used(t)])
        weights = self.query(layers.tanh()).squeeze(-1).softmax(0)
        logits: Tensor = self.out(torch.einsum("lbn,lbnd->bnd", weights, layers).mean(1))
        return logits


def victim(model: nn.Module) -> Victim:
    return Victim(model, name="toy", num_classes=10, input_size=32).eval()


def test_a_layer_that_never_reaches_the_logits_is_listed_and_counts_for_nothing() -> None:
    x = toy_pictures(2)
    for cut in (False, True):  # a cut graph is no missing path
        layers = attention_layers(victim(WithHead(cut=cut)), x)
        assert [layer.name for layer in layers.layers] == ["model.used"]
        assert layers.ignored == (("model.pool", "unused: it never reaches the logits"),)
        assert layers.calls == (0, None)


def test_sharpening_an_unused_head_changes_no_verdict() -> None:
    data = (toy_pictures(4), torch.arange(4))
    plain, sharp = (diagnose(WithHead(factor), data, threads=1) for factor in (1.0, 1e5))
    assert plain.verdict == sharp.verdict == "ok" and len(sharp.blocks) == 1


def test_a_softmax_over_layers_is_not_attention_and_scales_stay_with_their_sample() -> None:
    model, x = victim(DepthResidual()), toy_pictures(3)
    layers = attention_layers(model, x)
    assert [layer.name for layer in layers.layers] == ["model.used"]
    assert "over layers or branches" in layers.ignored[0][1]
    scales = torch.ones(3, 1)
    scales[1] = 0.1
    with torch.no_grad():
        plain = model(x)
        with AttentionTap(with_sample_axes(layers, model), rescale=scales, per="sample"):
            scaled = model(x)
    assert torch.equal(plain[[0, 2]], scaled[[0, 2]]) and not torch.equal(plain[1], scaled[1])


def test_a_model_that_keeps_its_attention_can_still_be_copied() -> None:
    class Keeping(WithHead):
        def forward(self, x: Tensor) -> Tensor:
            logits = super().forward(x)
            self.kept, self.all = logits, {"each": [logits]}
            return logits

    model = victim(Keeping())
    attention_layers(model, toy_pictures(2))
    copy.deepcopy(model)


def test_the_probe_costs_one_forward_and_no_backward() -> None:
    model: Any = tiny_vit()
    with counting_passes(model) as passes:
        layers = attention_layers(model, toy_pictures(2))
    assert len(layers) and (passes.forwards, passes.backwards) == (1, 0)


class Nested(nn.Module):
    """Attention on nested tensors, as NaViT packs images of different sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(12, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = nn.functional.unfold(x, 2, stride=2).transpose(1, 2)
        packed = torch.nested.as_nested_tensor([self.embed(row) for row in rows], layout=torch.jagged)
        packed = packed.unflatten(-1, (1, 4)).transpose(1, 2)
        out = nn.functional.scaled_dot_product_attention(packed, packed, packed)
        return torch.stack([self.head(row.mean((0, 1))) for row in out.transpose(1, 2).unbind()])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_attention_on_nested_tensors_is_named_as_what_cannot_be_read() -> None:
    x = torch.rand(2, 3, 4, 4)
    layers = attention_layers(Nested(), x)
    assert len(layers) == 0 and "nested tensors" in layers.ignored[0][1]
    with pytest.raises(UsageError, match="no softmax to diagnose: .*nested tensors") as said:
        diagnose(Nested(), (x, torch.zeros(2, dtype=torch.long)), threads=1)
    assert "\n" not in str(said.value)
