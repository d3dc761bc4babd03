"""Patch-Fool: its gradients against finite differences and by hand, and what its attention loss is for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.conftest import tiny_vit, toy_pictures
from vitattack.attacks import attack_text
from vitattack.attacks.patch.patch_fool import PatchFool, attention_on, without_conflict
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.architectures.small import SMALL
from vitattack.models.blocks.attended import AttentionRead, attended
from vitattack.models.passes import counting_passes
from vitattack.models.victim import Victim, frozen
from vitattack.threats.base import parse_threat
from vitattack.threats.patch import Patch

TOKEN = parse_threat("patch:1tokens@4px")


def rng(n: int) -> SampleRng:
    return SampleRng(0, tuple(range(n)))


def ready(text: str, victim: Victim) -> PatchFool:
    attack = attack_text.build(text, TOKEN).prepare(victim, lambda: (torch.empty(0), torch.empty(0)), rng=rng(1))
    assert isinstance(attack, PatchFool)
    return attack


def test_what_the_view_reads_is_the_attention_of_the_plain_victim() -> None:
    victim, x = tiny_vit(), toy_pictures(5)
    attack = ready("patch_fool", victim)
    view = attack.view(victim)
    assert isinstance(view, AttentionRead) and attack.layers is not None and attack.readable is not None
    with frozen(victim), torch.no_grad():
        assert torch.allclose(view(x), victim(x), rtol=1e-4, atol=1e-3)
    plain = attended(victim, attack.layers, attack.readable, x)
    assert len(view.received) == len(plain) == 2
    for number, received in zip(plain, view.received, strict=True):
        assert received.shape == (5, 8, 8) and torch.allclose(received, plain[number], atol=1e-6)


def test_the_attention_loss_is_the_logarithm_for_the_token_under_the_patch() -> None:
    received = [torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(n)) for n in range(2)]
    places = torch.tensor([[0, 0], [4, 28], [16, 8]])
    inside = Patch(1, "tokens", 4).at(places).inside(torch.empty(3, 3, 32, 32))
    expected = sum(
        layer[n, top // 4, left // 4].log() for layer in received for n, (top, left) in enumerate(places.tolist())
    )
    assert torch.allclose(attention_on(received, inside), torch.as_tensor(expected))


def test_only_the_part_against_the_loss_is_taken_out() -> None:
    grad = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]).view(3, 2, 1, 1)
    towards = torch.tensor([[2.0, 3.0], [-2.0, 3.0], [1.0, 1.0]]).view(3, 2, 1, 1)
    assert without_conflict(towards, grad).view(3, 2).tolist() == [[2.0, 3.0], [0.0, 3.0], [1.0, 1.0]]


def test_patches_draw_attention_if_they_are_asked_to() -> None:
    """With a weight that outweighs the loss, tokens under the patch end up with more attention than without."""
    victim, x = tiny_vit(), toy_pictures(8)
    y = victim(x).argmax(1)

    def received(weight: float) -> float:
        attack = ready(f"patch_fool(steps=15, weight={weight}, place=at(8, 8), stop='never')", victim)
        x_adv = attack(victim, x, y, rng=rng(8)).x_adv
        view = attack.view(victim)
        assert isinstance(view, AttentionRead) and TOKEN.allows(x, x_adv).all()
        with frozen(victim), torch.no_grad():
            view(x_adv)
        inside = Patch(1, "tokens", 4).at(torch.tensor([[8, 8]] * 8)).inside(x)
        return float(attention_on(view.received, inside))

    assert received(1e6) > received(0.0) + 0.1 > received(-1e6) + 0.2


def test_rows_that_leave_change_nothing_for_those_that_stay() -> None:
    victim, x = tiny_vit(), toy_pictures(10)
    y = victim(x).argmax(1)
    attack = replace(ready("patch_fool(steps=6, weight=0.1)", victim), threat=Patch(2, "tokens", 4))
    with counting_passes(victim) as passes:
        together = attack(victim, x, y, rng=rng(10))
    fooled = together.evidence["fooled"]
    assert bool(fooled.any()) and int(together.evidence["first_fooled"].unique().numel()) > 2
    assert passes.backwards == int(together.evidence["backwards"].sum())
    for n in range(10):
        alone = attack(victim, x[n : n + 1], y[n : n + 1], rng=SampleRng(0, (n,)))
        assert torch.equal(alone.evidence["first_fooled"], together.evidence["first_fooled"][n : n + 1])


@pytest.mark.parametrize("name", ["tiny_cnn_32"])
def test_models_without_attention_over_patches_are_refused(name: str) -> None:
    victim = Victim(SMALL[name](), name=name, num_classes=10, input_size=32).eval()
    with pytest.raises(UsageError, match="no attention"):
        ready("patch_fool", victim)


def test_options_of_attention_scales_leave_it_alone() -> None:
    from vitattack.text.syntax import AttackSyntax

    syntax = AttackSyntax.of("patch_fool(steps=3)")
    assert attack_text.with_scales(syntax, (0.5,)).text == syntax.text
