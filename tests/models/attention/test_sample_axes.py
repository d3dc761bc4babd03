"""Scales per sample stay with their sample, wherever the batch lies in the scores."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import toy_pictures
from vitattack.core.errors import UsageError
from vitattack.models.attention.attention_map import AttentionMap
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.attention.rescaled import Rescaled
from vitattack.models.attention.sample_axes import with_sample_axes
from vitattack.models.attention.tap import AttentionTap
from vitattack.models.victim import Victim
from vitattack.models.views import BackwardOnly

HEADS = 2
# Scores of B images: (B, h, n, n) is the usual layout, and the first letters name the axes of the others.
LAYOUTS = {"b h": (0, 1), "h b": (1, 1), "(b h)": (0, HEADS), "(h b)": (0, 1)}


class Laid(nn.Module):
    """Two layers of attention with heads and batch in a given layout; scores of positions alone are those of any image."""

    def __init__(self, layout: str, fused: bool, of_positions: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layout, self.fused, self.of_positions = layout, fused, of_positions
        self.embed, self.head = nn.Conv2d(3, 8, 8, 8), nn.Linear(8, 4)
        self.qkv = nn.ModuleList([nn.Linear(8, 24), nn.Linear(8, 24)])
        for layer in self.qkv:
            nn.init.normal_(layer.weight)
        self.positions = nn.Parameter(torch.randn(1, 16, 8))

    def laid(self, t: Tensor) -> Tensor:
        t = t.unflatten(-1, (HEADS, 4)).transpose(1, 2)  # (B, h, n, d)
        t = t.transpose(0, 1) if self.layout in ("h b", "(h b)") else t
        return t.flatten(0, 1) if self.layout[0] == "(" else t

    def forward(self, x: Tensor) -> Tensor:
        t = self.embed(x).flatten(2).transpose(1, 2)
        for layer in self.qkv:
            places = layer(self.positions.expand_as(t) if self.of_positions else t)[..., :16]
            q, k, v = (self.laid(part) for part in torch.cat([places, layer(t)[..., 16:]], -1).chunk(3, -1))
            if self.fused:
                out = nn.functional.scaled_dot_product_attention(q, k, v)
            else:
                out = (q @ k.transpose(-2, -1) / 2).softmax(-1) @ v
            if self.layout[0] == "(":
                out = out.unflatten(0, (len(x), HEADS) if self.layout == "(b h)" else (HEADS, len(x)))
            out = out.transpose(0, 1) if self.layout in ("h b", "(h b)") else out
            t = t + out.transpose(1, 2).flatten(2)
        logits: Tensor = self.head(t.mean(1))
        return logits


def victim(layout: str, fused: bool, of_positions: bool = False) -> Victim:
    return Victim(Laid(layout, fused, of_positions), name=layout, num_classes=4, input_size=32).eval()


@pytest.mark.parametrize("images", [HEADS, 3])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_scale_of_an_image_changes_that_image_alone(layout: str, fused: bool, images: int) -> None:
    model, x = victim(layout, fused), toy_pictures(images)
    layers = with_sample_axes(attention_layers(model, x), model)
    assert len(layers) == 2 and all(layer.samples == LAYOUTS[layout] for layer in layers.layers)
    with torch.no_grad():
        plain = model(x)
        for changed in range(images):
            scales = torch.ones(images, 2)
            scales[changed] = torch.tensor([0.2, 3.0])
            scaled = Rescaled(model, scales, per="sample")(x)
            same = (scaled == plain).all(1)
            assert same.tolist() == [image != changed for image in range(images)]
            one = Rescaled(model, scales[changed])(x)[changed]
            assert torch.allclose(scaled[changed], one, atol=1e-5)


@pytest.mark.parametrize("of_positions", [False, True])
@pytest.mark.parametrize("images", [1, HEADS, 3])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_scale_of_a_head_changes_that_head_alone(layout: str, fused: bool, images: int, of_positions: bool) -> None:
    model, changed = victim(layout, fused, of_positions), victim(layout, fused, of_positions)
    x = toy_pictures(images)
    scales = torch.tensor([[0.2, 3.0], [1.0, 0.5]])
    for each in (model.model, changed.model):
        each.num_heads = HEADS  # as modules of attention say it
    with torch.no_grad():
        for layer, factors in zip(changed.model.qkv, scales, strict=True):
            queries = factors.repeat_interleave(4)
            layer.weight[:8] *= queries[:, None]
            layer.bias[:8] *= queries
        assert torch.allclose(Rescaled(model, scales, per="head")(x), changed(x), atol=1e-4)


def test_heads_that_cannot_be_told_from_windows_are_not_scaled_apart() -> None:
    class Windows(nn.Module):
        """Two windows per image in front of the batch, two heads behind it, or the other way round: the shapes are equal."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.num_heads = 2
            self.qk, self.head = nn.Linear(3, 12), nn.Linear(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            t = nn.functional.avg_pool2d(x, 4).flatten(2).transpose(1, 2)  # (B, 64, 3)
            t = t.unflatten(1, (2, 32)).transpose(0, 1).flatten(0, 1)  # (w B, 32, 3)
            q, k = (part.unflatten(-1, (2, 3)).transpose(1, 2).flatten(0, 1) for part in self.qk(t).chunk(2, -1))
            t = (q @ k.transpose(1, 2)).softmax(-1) @ t.repeat_interleave(2, 0)  # (w B h, 32, 3)
            logits: Tensor = self.head(t.unflatten(0, (2, len(x), 2)).square().mean((0, 2, 3)))
            return logits

    model, x = Victim(Windows(), name="windows", num_classes=4, input_size=32).eval(), toy_pictures(3)
    with pytest.raises(UsageError, match="where the heads lie in the scores of .* is not known.*scales per layer"):
        Rescaled(model, torch.tensor([[0.1, 1.0]]), per="head")(x)
    with torch.no_grad():
        assert not torch.equal(Rescaled(model, torch.tensor([0.1]))(x), model(x))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_backward_view_scales_the_gradient_of_that_image_alone(layout: str) -> None:
    model, x = victim(layout, fused=False), toy_pictures(HEADS)
    layers = attention_layers(model, x)

    def gradient(scales: Tensor) -> Tensor:
        leaf = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(BackwardOnly(model, scales, layers, per="sample")(leaf).square().sum(), leaf)
        return grad

    plain, scaled = gradient(torch.ones(HEADS, 2)), gradient(torch.tensor([[1.0, 1.0], [0.2, 3.0]]))
    assert torch.equal(plain[0], scaled[0]) and not torch.allclose(plain[1], scaled[1])


def test_layers_that_were_not_probed_are_refused() -> None:
    model, x = victim("h b", fused=False), toy_pictures(2)
    layers: AttentionMap = attention_layers(model, x)
    with (
        pytest.raises(UsageError, match="with_sample_axes"),
        AttentionTap(layers, rescale=torch.ones(2, 2), per="sample"),
    ):
        model(x)


def test_windows_stay_with_their_image() -> None:
    """Windows are folded behind the image, as in Swin: (B w, h, n, n)."""

    class Windows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.qk, self.head = nn.Linear(3, 6), nn.Linear(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            t = nn.functional.avg_pool2d(x, 4).unflatten(2, (2, 4)).unflatten(4, (2, 4))
            t = t.permute(0, 2, 4, 3, 5, 1).reshape(len(x) * 4, 16, 3)
            q, k = (9 * self.qk(t)).chunk(2, -1)
            t = t + (q @ k.transpose(1, 2)).softmax(-1) @ t
            logits: Tensor = self.head(t.reshape(len(x), -1, 3).square().mean(1))
            return logits

    model, x = Victim(Windows(), name="windows", num_classes=4, input_size=32).eval(), toy_pictures(3)
    (layer,) = with_sample_axes(attention_layers(model, x), model).layers
    assert layer.samples == (0, 4)
    with torch.no_grad():
        scaled = Rescaled(model, torch.tensor([[1.0], [0.1], [1.0]]), per="sample")(x)
        assert (scaled == model(x)).all(1).tolist() == [True, False, True]
