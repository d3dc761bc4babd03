"""PGD in a patch against the optimum of a linear victim at every place; places; what the judge does not count."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import vitattack
from tests.conftest import Linear, batch, tiny_vit, toy_pictures
from vitattack.attacks import attack_text
from vitattack.attacks.base import Attack, Crafted, blank_evidence
from vitattack.attacks.catalogue import ATTACKS, Entry
from vitattack.attacks.patch.places import hottest
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.models.victim import Victim
from vitattack.threats.base import parse_threat
from vitattack.threats.patch import Patch

THREAT = Patch(3)
N = 12


def rng(n: int) -> SampleRng:
    return SampleRng(0, tuple(range(n)))


def linear(gap: float) -> Victim:
    return Victim(Linear(gap=gap), name="linear", num_classes=5, input_size=8).double()


def best_margins(victim: Victim, x: Tensor) -> Tensor:
    """(B, 6, 6) the largest margin that a patch of 3 px can reach at each place: every pixel at the end its weight asks for."""
    slope = victim.model.slope.view(1, 3, 8, 8)  # type: ignore[union-attr, operator]
    logits = victim(x).detach()
    gain = (slope * ((slope > 0).double() - x)).sum(1)
    return (logits[:, 1] - logits[:, 0])[:, None, None] + torch.nn.functional.avg_pool2d(gain[:, None], 3, 1)[:, 0] * 9


@pytest.mark.parametrize("place", ["at(2, 4)", "random", "gradient", "search(across=6, steps=2)"])
def test_it_ends_in_the_corner_that_a_linear_victim_asks_for(place: str) -> None:
    victim, (x, y) = linear(gap=100.0), batch(N)  # nobody is fooled, so that all steps are made
    crafted = attack_text.build(f"patch_pgd(place={place}, steps=30)", THREAT)(victim, x, y, rng=rng(N))
    best, at = best_margins(victim, x), (torch.arange(N), crafted.evidence["top"], crafted.evidence["left"])
    assert torch.allclose(crafted.evidence["margin"], best[at], atol=1e-9)
    if place.startswith("at"):
        assert set(at[1].tolist()) == {2} and set(at[2].tolist()) == {4}
    if place.startswith("search"):
        assert torch.allclose(best[at], best.flatten(1).amax(1))


def test_every_place_finds_exactly_the_images_that_some_place_can_fool() -> None:
    reached = best_margins(linear(gap=0.0), batch(N)[0]).flatten(1).amax(1).sort().values
    victim, (x, y) = linear(gap=float(reached[N // 2 - 1 : N // 2 + 1].mean())), batch(N)
    possible = best_margins(victim, x).flatten(1).amax(1) > 0
    assert 0 < int(possible.sum()) < N
    attack = attack_text.build("patch_pgd(place=every(6), steps=30)", THREAT)
    crafted = attack(victim, x, y, rng=rng(N))
    assert torch.equal(crafted.evidence["fooled"], possible)
    assert THREAT.allows(x, crafted.x_adv).all()


def test_the_hottest_place_is_that_of_a_search_over_all() -> None:
    heat = torch.rand(4, 8, 8, generator=torch.Generator().manual_seed(1))
    x = torch.empty(4, 3, 8, 8)
    for threat in (Patch(3), Patch(1, "tokens", 4)):
        side, places = threat.side(x), hottest(threat, heat, x)
        for image, (top, left) in zip(heat, places.tolist(), strict=True):
            assert top % threat.grid == left % threat.grid == 0
            covered = image[top : top + side, left : left + side].sum()
            for row in range(0, 8 - side + 1, threat.grid):
                for column in range(0, 8 - side + 1, threat.grid):
                    assert covered >= image[row : row + side, column : column + side].sum() - 1e-6


def test_attention_is_the_place_of_the_token_that_receives_most() -> None:
    victim, x = tiny_vit(), toy_pictures(6)
    y = victim(x).argmax(1)
    seen: list[Tensor] = []
    block = victim.model.blocks[1].attn  # type: ignore[union-attr, index]
    handle = block.qkv.register_forward_hook(lambda module, args, out: seen.append(out))  # type: ignore[union-attr]
    victim(x)
    handle.remove()
    q, k, _ = seen[0].reshape(6, -1, 3, 2, 16).permute(2, 0, 3, 1, 4)
    received = (q @ k.transpose(-1, -2) / 4).softmax(-1).mean((1, 2))
    tokens = received.argmax(1)
    assert received.shape == (6, 64)  # no class token
    attack = attack_text.build("patch_pgd(place=attention(layer=1), steps=1)", parse_threat("patch:1tokens@4px"))
    crafted = attack.prepare(victim, lambda: (x, y), rng=rng(1))(victim, x, y, rng=rng(6))
    side = 32 // 4
    assert torch.equal(crafted.evidence["top"] // 4 * side + crafted.evidence["left"] // 4, tokens)


def test_a_model_without_attention_over_patches_has_no_place_by_attention() -> None:
    attack = attack_text.build("patch_pgd(place=attention)", THREAT)
    with pytest.raises(UsageError, match="use place=gradient"):
        attack.prepare(linear(1.0), lambda: batch(1), rng=rng(1))


def test_a_place_off_the_image_or_off_the_grid_is_refused() -> None:
    victim, (x, y) = linear(1.0), batch(2)
    for text, threat in (("at(6, 0)", THREAT), ("at(2, 4)", Patch(1, "tokens", 4))):
        with pytest.raises(UsageError, match="no corner of patch"):
            attack_text.build(f"patch_pgd(place={text})", threat)(victim, x, y, rng=rng(2))


@dataclass(frozen=True)
class Paints(Attack):
    """Paints the upper left corner, 8 px high, and claims to have fooled everyone."""

    columns: int

    def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        x_adv = x.clone()
        x_adv[..., :8, : self.columns] = 1 - x_adv[..., :8, : self.columns].round()
        return Crafted(x_adv, blank_evidence(x) | {"fooled": torch.ones_like(y, dtype=torch.bool)})


def paints(threat: Patch, *, columns: int) -> Paints:
    """A planted attack that may paint more than its threat allows."""
    return Paints(columns)


def test_examples_with_a_pixel_changed_outside_the_square_do_not_count() -> None:
    victim, x = tiny_vit(), toy_pictures(6)
    y = victim(x).argmax(1)

    def statuses(columns: int) -> list[str]:
        result = vitattack.evaluate(victim, f"paints(columns={columns})", threat="patch:8px", data=(x, y))[0]
        assert all(record.violation == (columns > 8) for record in result.records)
        return [record.status for record in result.records]

    with ATTACKS.temporarily("paints", Entry(paints, "planted", "paints(columns=3)", threats=("patch",))):
        inside, one_more = statuses(8), statuses(9)
    assert "fooled" in inside and one_more == ["invalid"] * 6


def test_other_attacks_say_in_one_line_which_are_made_for_patches() -> None:
    for text in ("auto", "pgd", "worst(square, patch_pgd)", "restarts(2, apgd)"):
        with pytest.raises(UsageError, match=r"not defined for patch threats: use .* or patch_pgd") as refusal:
            vitattack.attack(text, threat="patch:5px")
        assert "\n" not in str(refusal.value)
    with pytest.raises(UsageError, match="patch_pgd is not defined for linf threats: use --threat patch:5px"):
        vitattack.attack("patch_pgd", threat="linf:8/255")
