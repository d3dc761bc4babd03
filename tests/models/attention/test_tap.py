"""The tap on small models whose attention can be written down by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack

from tests.conftest import tiny_vit, toy_pictures
from vitattack.attacks import attack_text
from vitattack.core.errors import UsageError, VitattackError
from vitattack.core.rng import SampleRng
from vitattack.models.attention.attention_map import AttentionMap
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.attention.rescaled import Rescaled
from vitattack.models.attention.tap import AttentionTap, Seen
from vitattack.models.victim import Victim, as_victim, frozen
from vitattack.threats.base import parse_threat

X = toy_pictures(2)


@pytest.fixture(autouse=True)
def no_trace() -> Iterator[None]:
    """Whatever a test does, no function mode stays behind."""
    yield
    assert not _get_current_function_mode_stack()


def hooks_of(module: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in module.modules())


def logits(victim: nn.Module, x: Tensor = X) -> Tensor:
    with frozen(victim), torch.no_grad():
        return victim(x)


def observed(victim: nn.Module, layers: AttentionMap, x: Tensor = X, **settings: object) -> list[Seen]:
    seen: list[Seen] = []
    with frozen(victim), torch.no_grad(), AttentionTap(layers, observe=seen.append, **settings):  # type: ignore[arg-type]
        victim(x)
    return seen


def swin(fused: bool) -> Victim:
    torch.manual_seed(0)
    model = SwinTransformer(
        img_size=32, patch_size=2, window_size=4, embed_dim=16, depths=(2, 2), num_heads=(2, 4), num_classes=10
    )
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = fused
        if hasattr(module, "relative_position_bias_table"):
            nn.init.normal_(module.relative_position_bias_table)
    return Victim(model, name="swin", num_classes=10, input_size=32)


class Plain(nn.Module):
    """One attention written out: 64 tokens of 12 channels, and whatever a test wants between product and softmax."""

    def __init__(self, mask: Tensor | None = None, how: str = "add") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (nn.Linear(12, 12) for _ in range(3))
        self.head = nn.Linear(12, 10)
        self.mask, self.how = mask, how

    def forward(self, x: Tensor) -> Tensor:
        tokens = nn.functional.avg_pool2d(x, 4).flatten(2).transpose(1, 2)
        tokens = torch.cat([tokens, tokens.sin(), tokens.cos(), tokens.square()], -1)
        scores = self.q(tokens) @ self.k(tokens).transpose(1, 2)
        if self.mask is not None:
            forbidden = self.mask != 0
            scores = {
                "add": lambda: scores + self.mask,
                "in place": lambda: scores.add_(self.mask),
                "masked_fill": lambda: scores.masked_fill(forbidden, -math.inf),
                "where": lambda: torch.where(forbidden, torch.finfo(scores.dtype).min, scores),
                "baddbmm": lambda: torch.baddbmm(
                    self.mask.expand(len(x), -1, -1), self.q(tokens), self.k(tokens).transpose(1, 2)
                ),
            }[self.how]()
        return self.head((scores.softmax(-1) @ self.v(tokens)).mean(1))


def test_layers_of_a_vit() -> None:
    victim = tiny_vit()
    layers = attention_layers(victim, X)
    assert [layer.name for layer in layers.layers] == ["model.blocks.0.attn", "model.blocks.1.attn"]
    assert [layer.block for layer in layers.layers] == ["model.blocks.0", "model.blocks.1"]
    assert all(layer.fused and layer.heads == 2 and layer.head_axis == 1 for layer in layers.layers)
    assert layers.ignored == () and hooks_of(victim) == 0


@pytest.mark.parametrize("fused", [True, False])
def test_ones_are_the_identity_to_the_bit_and_halves_are_not(fused: bool) -> None:
    victim = tiny_vit()
    for block in victim.model.blocks:
        block.attn.fused_attn = fused
    layers = attention_layers(victim, X)
    plain = logits(victim)
    for shape, per in (((2,), "layer"), ((2, 2), "head"), ((2, 2), "sample")):
        assert torch.equal(logits(Rescaled(victim, torch.ones(shape), per=per, layers=layers)), plain)
        assert not torch.equal(logits(Rescaled(victim, torch.full(shape, 0.5), per=per, layers=layers)), plain)
    assert torch.equal(logits(victim), plain)


@pytest.mark.parametrize("fused", [True, False])
def test_a_scale_is_what_it_says(fused: bool) -> None:
    """Against the model whose query weights were multiplied instead: per layer and per head."""
    victim, changed = tiny_vit(), tiny_vit()
    for model in (victim, changed):
        for block in model.model.blocks:
            block.attn.fused_attn = fused
    scales = torch.tensor([[3.0, 1.0], [0.5, 0.25]])
    with torch.no_grad():
        for block, row in zip(changed.model.blocks, scales, strict=True):
            block.attn.qkv.weight[:32] *= row.repeat_interleave(16)[:, None]
            block.attn.qkv.bias[:32] *= row.repeat_interleave(16)
    assert torch.allclose(logits(Rescaled(victim, scales, per="head")), logits(changed), atol=1e-6)


def test_per_sample_scales_leave_the_other_samples_alone() -> None:
    victim = tiny_vit()
    scales = torch.tensor([[0.1, 0.1], [1.0, 1.0]])
    plain, scaled = logits(victim), logits(Rescaled(victim, scales, per="sample"))
    assert not torch.allclose(scaled[0], plain[0]) and torch.equal(scaled[1], plain[1])


@pytest.mark.parametrize(("per", "shape"), [("layer", (2,)), ("head", (2, 2)), ("sample", (2, 2))])
def test_gradients_of_scales_agree_with_finite_differences(per: str, shape: tuple[int, ...]) -> None:
    victim = tiny_vit().double()
    layers = attention_layers(victim, X.double())
    scales = torch.full(shape, 0.7, dtype=torch.float64)

    def loss(s: Tensor) -> Tensor:
        return Rescaled(victim, s, per=per, layers=layers)(X.double()).square().sum()  # type: ignore[arg-type]

    with frozen(victim):
        assert torch.autograd.gradcheck(loss, (scales.requires_grad_(),), eps=1e-5, atol=1e-6)


def test_observed_scores_are_the_fp64_products_of_q_and_k() -> None:
    victim = tiny_vit()
    captured: list[Tensor] = []
    handles = [b.attn.qkv.register_forward_hook(lambda _, __, out: captured.append(out)) for b in victim.model.blocks]
    plain = logits(victim)
    for fused in (True, False):
        captured.clear()
        for block in victim.model.blocks:
            block.attn.fused_attn = fused
        seen = observed(victim, attention_layers(victim, X))
        for one, qkv in zip(seen, captured[-2:], strict=True):
            q, k, _ = qkv.view(2, 64, 3, 2, 16).permute(2, 0, 3, 1, 4).unbind(0)
            expected = q.double() @ k.double().transpose(-2, -1) / 4
            assert one.scores(torch.float64).dtype == torch.float64
            assert (one.scores(torch.float64) - expected).abs().max() < 1e-9 * expected.abs().max() + (
                0 if fused else 1e-7
            )
            assert torch.allclose(one.scores(), expected.float(), atol=1e-5)
            assert one.by_head(one.scores()).shape == (2, 128, 64)
    assert torch.allclose(logits(victim), plain, atol=1e-6)
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("fused", [True, False])
def test_swin_keeps_its_windows_apart_at_a_small_scale(fused: bool) -> None:
    victim = swin(fused)
    layers = attention_layers(victim, X)
    assert [layer.fused for layer in layers.layers] == [fused] * 4
    plain, small = observed(victim, layers), []
    for number in range(4):  # one at a time: what a scaled layer hands on changes the scores of the next
        scales = torch.ones(4).index_fill(0, torch.tensor([number]), 1e-3)
        small.append(observed(victim, layers, rescale=scales)[number])
    shifted = [block.attn_mask for stage in victim.model.layers for block in stage.blocks]
    assert [mask is not None for mask in shifted] == [False, True, False, True]
    for before, after, mask in zip(plain, small, shifted, strict=True):
        z = after.scores(torch.float64)
        if mask is None:
            assert after.masked() is None or not bool(after.masked().any())
            assert torch.allclose(z, before.scores(torch.float64) * 1e-3, rtol=1e-4, atol=1e-7)
            continue
        windows = mask.shape[0]
        forbidden = (mask != 0)[None, :, None].expand(2, -1, z.shape[1], -1, -1).reshape(z.shape)
        assert windows * 2 == len(z) and bool(forbidden.any())
        assert torch.equal(after.masked(), forbidden)
        assert float(z.softmax(-1)[forbidden].max()) < 1e-30
        # the position bias is no mask: it is scaled with the scores
        assert torch.allclose(z[~forbidden], before.scores(torch.float64)[~forbidden] * 1e-3, rtol=1e-4, atol=1e-7)
    assert torch.equal(logits(Rescaled(victim, torch.ones(4))), logits(victim))


@pytest.mark.parametrize("how", ["add", "in place", "masked_fill", "where", "baddbmm"])
@pytest.mark.parametrize("low", [-100.0, -math.inf])
def test_masks_are_never_scaled(how: str, low: float) -> None:
    mask = torch.zeros(64, 64)
    mask[:, 40:] = low
    victim = as_victim(Plain(mask, how), X)
    layers = attention_layers(victim, X)
    assert len(layers) == 1 and len(layers.masks) == 1
    assert torch.equal(logits(Rescaled(victim, torch.ones(1), layers=layers)), logits(victim))
    (seen,) = observed(victim, layers, rescale=torch.tensor([1e-3]))
    assert torch.equal(seen.masked(), (mask != 0).expand(2, -1, -1))
    assert float(seen.scores().softmax(-1)[..., 40:].max()) < 1e-30
    scale = torch.tensor([0.5], requires_grad=True)
    with frozen(victim):
        (grad,) = torch.autograd.grad(Rescaled(victim, scale, layers=layers)(X).square().sum(), scale)
    assert bool(torch.isfinite(grad).all()) and float(grad.abs()) > 0


@pytest.mark.parametrize("way", ["arithmetic", "in place", "assignment", "head mixing"])
def test_scores_are_followed_in_fp64_to_the_softmax(way: str) -> None:
    """What a model does to its scores in between is replayed in fp64, not read off in fp32."""

    class Model(Plain):
        def forward(self, x: Tensor) -> Tensor:
            tokens = nn.functional.avg_pool2d(x, 4).flatten(2).transpose(1, 2).repeat(1, 1, 4)
            q, k = (part(tokens).view(len(x), 64, 2, 6).transpose(1, 2) for part in (self.q, self.k))
            if len(x) == 2:
                self.product = q.double() @ k.double().transpose(-2, -1)
            scores = q @ k.transpose(-2, -1)
            if way == "arithmetic":
                scores = (scores / 3 + 1) * 7
            elif way == "in place":
                scores /= 3
                scores += 1
                scores *= 7
            elif way == "assignment":
                scores[..., 1:, 1:] = scores[..., 1:, 1:] / 3 + 1
            else:
                scores = self.mix(scores.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            return self.head((scores.softmax(-1) @ self.v(tokens)[:, None]).mean((1, 2)))

    model = Model()
    model.mix = nn.Linear(2, 2)
    victim = as_victim(model, X)
    (seen,) = observed(victim, attention_layers(victim, X))
    expected = model.product.clone()
    if way in ("arithmetic", "in place"):
        expected = (expected / 3 + 1) * 7
    elif way == "assignment":
        expected[..., 1:, 1:] = expected[..., 1:, 1:] / 3 + 1
    else:
        weight, bias = model.mix.weight.double(), model.mix.bias.double()
        expected = (expected.permute(0, 2, 3, 1) @ weight.T + bias).permute(0, 3, 1, 2)
    assert (seen.scores(torch.float64) - expected).abs().max() < 1e-12
    assert (seen.scores().double() - expected).abs().max() > 1e-10


def test_a_view_around_masks_is_seen_as_it_is() -> None:
    """A tap around a rescaled view observes the scaled scores with their masks."""
    for fused in (True, False):
        view = Rescaled(swin(fused), torch.full((4,), 0.1))
        outer = attention_layers(view, X)
        inner = observed(view.victim, view.layers, rescale=view.scales)
        around = observed(view, outer)
        assert [layer.name for layer in outer.layers] == [f"victim.{layer.name}" for layer in view.layers.layers]
        for one, two in zip(inner, around, strict=True):
            free = slice(None) if one.masked() is None else ~one.masked()
            assert torch.allclose(two.scores(torch.float64)[free], one.scores(torch.float64)[free], atol=1e-9)
            assert (one.masked() is None) == (two.masked() is None)
            assert one.masked() is None or torch.equal(one.masked(), two.masked())


@pytest.mark.parametrize("need_weights", [True, False])
def test_multihead_attention_is_opened(need_weights: bool) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.attention = nn.MultiheadAttention(12, 3)
            self.head = nn.Linear(12, 5)

        def forward(self, x: Tensor) -> Tensor:
            tokens = nn.functional.avg_pool2d(x, 4).flatten(2).permute(2, 0, 1).repeat(1, 1, 4)
            out, _ = self.attention(tokens, tokens, tokens, need_weights=need_weights)
            return self.head(out.mean(0))

    victim = as_victim(Model(), X)
    layers = attention_layers(victim, X)
    assert [(layer.name, layer.heads, layer.fused) for layer in layers.layers] == [
        ("model.attention", 3, not need_weights)
    ]
    plain = logits(victim)
    for shape, per in (((1,), "layer"), ((1, 3), "head"), ((2, 1), "sample")):
        assert torch.equal(logits(Rescaled(victim, torch.ones(shape), per=per)), plain)
        assert not torch.equal(logits(Rescaled(victim, torch.full(shape, 0.1), per=per)), plain)
    changed = as_victim(Model(), X)
    with torch.no_grad():  # the second head's queries, by hand
        changed.model.attention.in_proj_weight[4:8] *= 0.1
        changed.model.attention.in_proj_bias[4:8] *= 0.1
    scaled = Rescaled(victim, torch.tensor([[1.0, 0.1, 1.0]]), per="head")
    assert torch.allclose(logits(scaled), logits(changed), atol=1e-6)
    (seen,) = observed(victim, layers)
    assert seen.by_head(seen.scores()).shape == (3, 128, 64)


def test_weights_stand_in_for_the_softmax() -> None:
    victim = tiny_vit()
    layers = attention_layers(victim, X)
    with frozen(victim):
        with AttentionTap(layers, replacement=lambda layer, z: z.softmax(-1)):
            same = victim(X)
        with AttentionTap(layers, replacement=lambda layer, z: torch.full_like(z, 1 / z.shape[-1])):
            flat = victim(X)
    assert torch.allclose(same, logits(victim), atol=1e-6)
    assert torch.allclose(flat, logits(Rescaled(victim, torch.zeros(2), layers=layers)), atol=1e-6)


def test_the_view_attacks_but_never_speaks_for_the_victim() -> None:
    victim = tiny_vit()
    view = Rescaled(victim, torch.full((2,), 0.1))
    y = logits(victim).argmax(1)
    x = X.clone()
    assert torch.equal(view.verdict(x, logits(view)), logits(victim))
    attack = attack_text.build("pgd(steps=3)", parse_threat("linf:16/255"))
    made = attack(view, x, y, rng=SampleRng(0, (0, 1)))
    fooled = logits(victim, made.x_adv).argmax(1) != y
    assert torch.equal(made.evidence["fooled"], fooled)
    assert hooks_of(view) == 0 and all(p.requires_grad for p in victim.parameters())


def test_softmaxes_that_are_no_attention() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.gate, self.head = nn.Conv2d(3, 8, 4, 4), nn.Conv2d(8, 1, 1), nn.Linear(8, 5)

        def forward(self, x: Tensor) -> Tensor:
            x = self.conv(x).contiguous()
            pooled = x.flatten(2) @ self.gate(x).flatten(2).softmax(-1).transpose(1, 2)  # a global context
            branches = torch.stack([x, x.relu()], 1)
            chosen = branches.mean((3, 4), keepdim=True).softmax(1)  # selective kernels
            mixed = (branches * chosen).sum(1).mean((2, 3)) + pooled.squeeze(-1)
            return self.head(mixed).softmax(-1)  # class probabilities

    victim = as_victim(Model(), X)
    layers = attention_layers(victim, X)
    assert len(layers) == 0 and len(layers.ignored) == 3
    assert "a gate" in layers.ignored[0][1]
    with pytest.raises(UsageError, match="has no attention softmax, so there is nothing to rescale"):
        Rescaled(victim, torch.ones(1))


def test_wrong_scales_are_refused_in_one_line() -> None:
    victim = tiny_vit()
    for scales, per in ((torch.ones(3), "layer"), (torch.ones(2, 3), "head"), (torch.ones(2, 3), "sample")):
        with pytest.raises(UsageError, match="scales are") as caught:
            Rescaled(victim, scales, per=per)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="floats"):
        Rescaled(victim, torch.ones(2, dtype=torch.long))
    with pytest.raises(UsageError, match="not known"):
        Rescaled(victim, torch.ones(2), per="block")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="scales are for 3 samples"):
        logits(Rescaled(victim, torch.ones(3, 2), per="sample"))


def test_a_model_that_runs_other_softmaxes_is_noticed() -> None:
    torch.manual_seed(0)
    settings = {"embed_dim": 16, "num_heads": 2, "num_classes": 4}
    four, three = (
        Victim(VisionTransformer(32, 8, depth=depth, **settings), name="vit", num_classes=4, input_size=32)  # type: ignore[arg-type]
        for depth in (4, 3)
    )
    layers = attention_layers(four, X)
    with pytest.raises(VitattackError, match="other softmaxes"):
        Rescaled(three, torch.ones(4), layers=layers)(X)


def test_nothing_is_left_behind_when_a_forward_fails() -> None:
    victim = tiny_vit()
    layers = attention_layers(victim, X)
    with pytest.raises(RuntimeError):
        Rescaled(victim, torch.ones(2), layers=layers)(torch.rand(1, 3, 5, 5))
    with pytest.raises(ZeroDivisionError):
        observed_fails(victim, layers)
    with pytest.raises(RuntimeError):
        attention_layers(victim, torch.rand(1, 5, 32, 32))
    assert hooks_of(victim) == 0


def observed_fails(victim: Victim, layers: AttentionMap) -> None:
    def fail(seen: Seen) -> None:
        raise ZeroDivisionError

    with AttentionTap(layers, observe=fail):
        victim(X)
