"""Changed gradients of transformers, against the same backward written out by hand, and over families found by probing."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from attention_rows.of_timm import FAMILIES, Family
from attention_rows.row import awake
from torch import Tensor, nn

from tests.models.blocks.families import cnn, plain_vit, windowed_swin, xcit
from vitattack.attacks import attack_text
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.attention.attention_map import AttentionLayer
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.attention.tap import AttentionTap
from vitattack.models.gradient_views.attention_fool import AttentionFool
from vitattack.models.gradient_views.branches import PayNoAttention, SkipGradient
from vitattack.models.gradient_views.changed import Change, Changed
from vitattack.models.gradient_views.token_gradients import TokenGradientRegularised
from vitattack.models.gradient_views.virtual_dense import VirtualDense
from vitattack.models.victim import Victim, frozen
from vitattack.threats.base import parse_threat

LINF = parse_threat("linf:8/255")
Hook = Callable[[Tensor, str, int], Tensor]
EVERY: list[Change] = [
    PayNoAttention(),
    PayNoAttention(0.3),
    SkipGradient(),
    TokenGradientRegularised(),
    VirtualDense(),
    AttentionFool(),
]


@cache
def sharp_vit() -> Victim:
    """A ViT whose attention is far from uniform, so that gradients through its weights count."""
    victim = deepcopy(plain_vit())
    with torch.no_grad():
        for block in victim.model.blocks:  # type: ignore[union-attr]
            block.attn.qkv.weight *= 30  # type: ignore[union-attr, operator]
    return victim


def no_images() -> Tensor:
    return torch.empty(0)


def images(victim: Victim, count: int = 2) -> Tensor:
    return torch.rand(count, 3, *victim.size, generator=torch.Generator().manual_seed(4))


def loss(logits: Tensor) -> Tensor:
    return F.cross_entropy(logits, torch.arange(len(logits)) % logits.shape[1], reduction="sum")


def by_view(victim: Victim, change: Change, x: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and gradient through a view."""
    view = Changed(victim, [change.prepared(victim, no_images)])
    x = x.clone().requires_grad_()
    with frozen(victim):
        logits = view(x)
        return logits.detach(), torch.autograd.grad(loss(logits), x)[0]


def plain(victim: Victim, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    with frozen(victim):
        logits = victim(x)
        return logits.detach(), torch.autograd.grad(loss(logits), x)[0]


def vit_by_hand(model: Any, x: Tensor, at: Hook) -> Tensor:
    """The forward of timm's ViT, with everything that attacks touch named: scores, weights, projections, MLPs, the stream."""
    t = model._pos_embed(model.patch_embed(x))
    for number, block in enumerate(model.blocks):
        images, tokens, width = t.shape
        heads = block.attn.num_heads
        qkv = at(block.attn.qkv(block.norm1(t)), "qkv", number)
        q, k, v = qkv.view(images, tokens, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        scores = at(q @ k.transpose(-2, -1) / (width // heads) ** 0.5, "scores", number)
        p = at(scores.softmax(-1), "weights", number)
        mixed = block.attn.proj((p @ v).transpose(1, 2).reshape(images, tokens, width))
        t = t + at(mixed, "attention", number)
        t = t + at(block.mlp(block.norm2(at(t.view_as(t), "entrance", number))), "mlp", number)
    t = at(t.view_as(t), "end", 0)
    logits: Tensor = model.head(model.norm(t)[:, 0])
    return logits


def by_hand(x: Tensor, change: Callable[[Tensor, str, int], Tensor | None]) -> Tensor:
    """The gradient with gradients changed at the named places; None leaves one as it is."""
    x = x.clone().requires_grad_()

    def at(value: Tensor, name: str, number: int) -> Tensor:
        if value.requires_grad:
            value.register_hook(lambda grad: change(grad, name, number))
        return value

    victim = sharp_vit()
    with frozen(victim):
        return torch.autograd.grad(loss(vit_by_hand(victim.model, x, at)), x)[0]


def test_the_forward_by_hand_is_that_of_the_model() -> None:
    x = images(sharp_vit())
    torch.testing.assert_close(by_hand(x, lambda *_: None), plain(sharp_vit(), x)[1], rtol=1e-4, atol=1e-6)


def close(found: Tensor, wanted: Tensor) -> None:
    assert float((found - wanted).abs().max()) <= 1e-4 * float(wanted.abs().max())


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_pna_multiplies_the_gradient_of_attention_weights(share: float) -> None:
    x = images(sharp_vit())
    wanted = by_hand(x, lambda grad, name, _: grad * share if name == "weights" else None)
    close(by_view(sharp_vit(), PayNoAttention(share), x)[1], wanted)
    assert float((wanted - plain(sharp_vit(), x)[1]).abs().max()) > 0.1 * float(wanted.abs().max())


@pytest.mark.parametrize(
    ("part", "places"), [("block", ("attention", "mlp")), ("mlp", ("mlp",)), ("attention", ("attention",))]
)
def test_sgm_multiplies_the_gradient_of_branches(part: Any, places: tuple[str, ...]) -> None:
    x = images(sharp_vit())
    wanted = by_hand(x, lambda grad, name, _: grad * 0.4 if name in places else None)
    close(by_view(sharp_vit(), SkipGradient(0.4, part), x)[1], wanted)


def tgr_by_hand(grad: Tensor, name: str, number: int) -> Tensor | None:
    """Loops over images, heads and channels, in the order of the paper's Algorithm 1."""
    factors = {"weights": 0.25, "qkv": 0.75, "mlp": 0.5}
    if name not in factors:
        return None
    grad = grad * factors[name]
    changed = grad.clone()
    for image in range(len(grad)):
        if name == "weights":
            for head in range(grad.shape[1]):
                for flat in (int(grad[image, head].argmax()), int(grad[image, head].argmin())):
                    row, column = divmod(flat, grad.shape[-1])
                    changed[image, head, row] = 0
                    changed[image, head, :, column] = 0
        else:
            for channel in range(grad.shape[-1]):
                line = grad[image, :, channel]
                changed[image, int(line.argmax()), channel] = 0
                changed[image, int(line.argmin()), channel] = 0
    return changed


def test_tgr_leaves_out_extreme_tokens() -> None:
    x = images(sharp_vit())
    close(by_view(sharp_vit(), TokenGradientRegularised(), x)[1], by_hand(x, tgr_by_hand))


def vdc_by_hand(x: Tensor) -> Tensor:
    """Two backwards over three blocks: what the deeper ones record in the first is added in the second."""
    seen: dict[tuple[str, int], Tensor] = {}

    def record(grad: Tensor, name: str, number: int) -> None:
        seen[name, number] = grad.clone()

    by_hand(x, record)
    attention, mlp = ([seen[name, number] for number in range(3)] for name in ("weights", "entrance"))
    at_class_token = torch.zeros_like(seen["end", 0])
    at_class_token[:, 0] = seen["end", 0][:, 0] * 0.1 * 0.5
    added = {
        ("weights", 2): torch.zeros_like(attention[2]),
        ("weights", 1): 0.1 * attention[2],
        ("weights", 0): 0.1 * attention[2] + 0.05 * attention[1],
        ("entrance", 2): at_class_token,
        ("entrance", 1): at_class_token + 0.1 * mlp[2],
        ("entrance", 0): at_class_token + 0.1 * mlp[2] + 0.05 * mlp[1],
    }
    own = {"weights": 0.25, "entrance": 0.5}

    def change(grad: Tensor, name: str, number: int) -> Tensor | None:
        return own[name] * grad + added[name, number] if name in own else None

    return by_hand(x, change)


def test_vdc_adds_the_gradients_of_deeper_blocks() -> None:
    x = images(sharp_vit())
    close(by_view(sharp_vit(), VirtualDense(), x)[1], vdc_by_hand(x))


def test_attention_fool_adds_a_loss_on_scores() -> None:
    victim = sharp_vit()
    x = images(victim).requires_grad_()
    scores: list[Tensor] = []

    def keep(value: Tensor, name: str, number: int) -> Tensor:
        if name == "scores":
            scores.append(value)
        return value

    with frozen(victim):
        whole = loss(vit_by_hand(victim.model, x, keep))
        for image in range(2):
            layers = []
            for z in scores:  # (images, heads, queries, keys)
                heads = []
                for head in z[image]:
                    unit = head / head.square().mean().sqrt()
                    heads.append(max(unit[:, key].mean() for key in range(unit.shape[1])))
                layers.append(torch.stack(heads).exp().sum().log())
            whole = whole + 2.5 * torch.stack(layers).exp().sum().log()
        (wanted,) = torch.autograd.grad(whole, x)
    close(by_view(victim, AttentionFool(2.5), x.detach())[1], wanted)


# Settings that leave the gradient as it is.
NEUTRAL: list[Change] = [SkipGradient(1.0), VirtualDense(1.0, 1.0, 0.0), AttentionFool(1e-9)]


@pytest.mark.parametrize("victim", [plain_vit(), windowed_swin(), xcit()], ids=lambda victim: victim.name)
@pytest.mark.parametrize("change", NEUTRAL, ids=lambda change: type(change).__name__)
def test_neutral_settings_give_the_plain_gradient(victim: Victim, change: Change) -> None:
    x = images(victim)
    close(by_view(victim, change, x)[1], plain(victim, x)[1])


def frozen_weights_gradient(victim: Victim, x: Tensor) -> Tensor:
    """The gradient with all attention weights put in as constants."""
    layers = attention_layers(victim, victim.grey())
    kept: list[Tensor] = []

    def keep(layer: AttentionLayer, scores: Tensor) -> Tensor:
        kept.append(scores.softmax(-1))
        return kept[-1]

    with frozen(victim):
        with torch.no_grad(), AttentionTap(layers, replacement=keep):
            victim(x)
        stored = iter(kept)
        x = x.clone().requires_grad_()
        with AttentionTap(layers, replacement=lambda layer, scores: next(stored)):
            logits = victim(x)
        return torch.autograd.grad(loss(logits), x)[0]


@pytest.mark.parametrize("change", EVERY, ids=lambda change: type(change).__name__)
@pytest.mark.parametrize("victim", [windowed_swin(), xcit()], ids=lambda victim: victim.name)
def test_views_change_the_gradient_and_no_logit(victim: Victim, change: Change) -> None:
    x = images(victim)
    logits, grad = by_view(victim, change, x)
    logits_before, grad_before = plain(victim, x)
    assert torch.equal(logits, logits_before)
    assert torch.isfinite(grad).all() and not torch.allclose(grad, grad_before, rtol=1e-3, atol=0)
    if change == PayNoAttention():
        close(grad, frozen_weights_gradient(victim, x))


@pytest.mark.slow
@pytest.mark.parametrize("family", [pytest.param(f, id=f.model) for f in FAMILIES if f.fast and f.layers])
def test_families_of_timm(family: Family) -> None:
    row = family.row()
    torch.manual_seed(0)
    victim = Victim(awake(row.build()), name=row.name, num_classes=10, input_size=row.size)
    x = images(victim)
    logits_before, grad_before = plain(victim, x)
    for change in EVERY:
        logits, grad = by_view(victim, change, x)
        assert torch.equal(logits, logits_before), change
        assert torch.isfinite(grad).all() and not torch.equal(grad, grad_before), change
    close(by_view(victim, PayNoAttention(), x)[1], frozen_weights_gradient(victim, x))


def test_sgm_decays_the_blocks_of_a_convolutional_network() -> None:
    x = images(cnn())
    assert not torch.allclose(by_view(cnn(), SkipGradient(), x)[1], plain(cnn(), x)[1], rtol=1e-3)
    close(by_view(cnn(), SkipGradient(1.0), x)[1], plain(cnn(), x)[1])


def test_the_images_of_a_batch_do_not_meet() -> None:
    for victim in (plain_vit(), windowed_swin()):
        x = images(victim, 3)
        for change in EVERY:
            together = by_view(victim, change, x)[1]
            view = Changed(victim, [change.prepared(victim, no_images)])
            alone = x[1:2].clone().requires_grad_()
            with frozen(victim):
                (grad,) = torch.autograd.grad(F.cross_entropy(view(alone), torch.tensor([1])), alone)
            close(together[1:2], grad)


def test_leaving_images_get_no_added_gradient() -> None:
    victim = plain_vit()
    view = Changed(victim, [AttentionFool().prepared(victim, no_images)])
    x = images(victim, 2).requires_grad_()
    with frozen(victim):
        (grad,) = torch.autograd.grad(loss(view(x)[:1]), x)
    assert grad[0].any() and not grad[1].any()


@pytest.mark.parametrize("name", ["pna", "tgr", "vdc", "attention_fool"])
def test_models_without_attention_are_refused(name: str) -> None:
    attack = attack_text.build(f"{name}(pgd(steps=2))", LINF)
    with pytest.raises(UsageError, match=f"there is nothing for {name} to change"):
        attack.prepare(cnn(), lambda: (no_images(), no_images()), rng=SampleRng(0, (0,)))


def test_a_model_without_branches_is_refused() -> None:
    flat = Victim(nn.Sequential(nn.Flatten(), nn.Linear(192, 10)), name="flat", num_classes=10, input_size=8)
    attack = attack_text.build("sgm(pgd(steps=2))", LINF)
    with pytest.raises(UsageError, match="no residual blocks"):
        attack.prepare(flat, lambda: (no_images(), no_images()), rng=SampleRng(0, (0,)))


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("pna(tgr(pgd))", "each replace the gradient of attention"),
        ("vdc(di(attention_fool(pgd)))", "each replace the gradient of attention"),
        ("pna(pgd, share=1)", "from 0 to below 1"),
        ("sgm(pgd, decay=2)", "from 0 to 1"),
        ("tgr(pgd, mlp=-1)", "from 0 to 1"),
        ("vdc(pgd, weight=3)", "from 0 to 1"),
        ("attention_fool(pgd, weight=0)", "above 0"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(text: str, cause: str) -> None:
    with pytest.raises(UsageError, match=cause):
        attack_text.build(text, LINF)
