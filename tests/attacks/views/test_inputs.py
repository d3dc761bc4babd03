"""Input transformations of transfer attacks, against the same steps written out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.conftest import toy_pictures
from vitattack.attacks import attack_text
from vitattack.attacks.views.through_view import ThroughView
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.gradient_views.changed import Change, Changed
from vitattack.models.gradient_views.inputs import (
    Admixed,
    DiverseInputs,
    PatchOut,
    ScaleInvariant,
    TranslationInvariant,
)
from vitattack.models.passes import counting_passes
from vitattack.models.victim import Victim
from vitattack.threats.base import parse_threat

LINF = parse_threat("linf:8/255")
RNG = SampleRng(0, (0, 1, 2))


def loss(logits: Tensor) -> Tensor:
    return F.cross_entropy(logits, torch.tensor([1, 2, 3]), reduction="none")


def by_view(victim: Victim, change: Change, x: Tensor, clean: Tensor) -> Tensor:
    """The gradient of the loss through a view, averaged over its copies."""
    view = Changed(victim, [change])
    view.follow(clean, RNG)
    x = x.clone().requires_grad_()
    logits = view(x)
    losses = loss(logits) if logits.dim() == 2 else torch.stack([loss(each) for each in logits]).mean(0)
    return torch.autograd.grad(losses.sum(), x)[0]


def by_hand(losses: Tensor, x: Tensor) -> Tensor:
    return torch.autograd.grad(losses.sum(), x)[0]


@pytest.fixture
def images() -> tuple[Tensor, Tensor]:
    clean = toy_pictures(3)
    return clean, (clean + 0.05 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))).clamp(0, 1)


def test_ti_is_the_plain_gradient_convolved_with_a_gaussian(toy: Victim, images: tuple[Tensor, Tensor]) -> None:
    clean, x = images
    weights = [
        math.exp(-((3 * (2 * i / 6 - 1)) ** 2) / 2) for i in range(7)
    ]  # three sigmas to each side of seven pixels
    whole = sum(a * b for a in weights for b in weights)
    at = x.clone().requires_grad_()
    plain = F.pad(by_hand(loss(toy(at)), at), (3, 3, 3, 3))
    wanted = torch.zeros_like(x)
    for i, a in enumerate(weights):
        for j, b in enumerate(weights):
            wanted += a * b / whole * plain[..., i : i + 32, j : j + 32]
    torch.testing.assert_close(by_view(toy, TranslationInvariant(7), x, clean), wanted)
    assert torch.equal(Changed(toy, [TranslationInvariant(7)])(x), toy(x))


def test_si_is_the_mean_over_scaled_copies(toy: Victim, images: tuple[Tensor, Tensor]) -> None:
    clean, x = images
    at = x.clone().requires_grad_()
    wanted = by_hand((loss(toy(at)) + loss(toy(at / 2)) + loss(toy(at / 4))) / 3, at)
    torch.testing.assert_close(by_view(toy, ScaleInvariant(3), x, clean), wanted)


def test_di_enlarges_pads_and_shrinks_every_image_in_its_own_way(toy: Victim, images: tuple[Tensor, Tensor]) -> None:
    clean, x = images
    assert torch.equal(
        by_view(toy, DiverseInputs(probability=0.0), x, clean), by_view(toy, ScaleInvariant(1), x, clean)
    )
    at = x.clone().requires_grad_()
    seen = []
    for number, image in enumerate(at):
        draw = SampleRng(0, (number,)).child("di", 0).generator(number)
        draw.random()
        side = int(draw.integers(32, 48))
        top, left = int(draw.integers(0, 48 - side)), int(draw.integers(0, 48 - side))
        canvas = torch.zeros(1, 3, 48, 48)
        canvas[..., top : top + side, left : left + side] = F.interpolate(image[None], size=side, mode="bilinear")
        seen.append(F.interpolate(canvas, size=32, mode="bilinear"))
    assert not torch.equal(seen[0], at[:1]) and (seen[0][..., 0, 0] == 0).all() != (seen[0][..., -1, -1] == 0).all()
    change = DiverseInputs(rate=1.5, probability=1.0)
    torch.testing.assert_close(by_view(toy, change, x, clean), by_hand(loss(toy(torch.cat(seen))), at))


def test_di_changes_as_many_images_as_it_says() -> None:
    x = torch.ones(400, 3, 8, 8)
    view = Changed(Victim(torch.nn.Flatten(), name="flat", num_classes=192, input_size=8), [DiverseInputs(2.0, 0.3)])
    view.follow(x, SampleRng(5, tuple(range(400))))
    changed = (view(x.requires_grad_()) < 1).any(1).sum()
    assert 0.3 * 400 - 4 * 10 < int(changed) < 0.3 * 400 + 4 * 10  # four standard deviations of about 9


def test_admix_adds_shares_of_calibration_images(toy: Victim, images: tuple[Tensor, Tensor]) -> None:
    clean, x = images
    pool = toy_pictures(2, seed=8)
    change = Admixed(others=2, strength=0.3, scales=2).prepared(toy, lambda: pool)
    rounded = (pool * 255).round() / 255
    at = x.clone().requires_grad_()
    # two of two: each of them in one of the two copies, in either order
    mixed = [at + 0.3 * rounded[k] for k in range(2)]
    wanted = by_hand(torch.stack([loss(toy(image / scale)) for image in mixed for scale in (1, 2)]).mean(0), at)
    torch.testing.assert_close(by_view(toy, change, x, clean), wanted)


def test_admix_without_images_says_what_it_adds(toy: Victim, images: tuple[Tensor, Tensor]) -> None:
    clean, x = images
    change = Admixed(others=1, scales=1).prepared(toy, lambda: torch.empty(0, 3, 32, 32))
    assert "mirror image" in change.doubts()[0]
    at = x.clone().requires_grad_()
    wanted = by_hand(loss(toy(at + 0.2 * x.flip(-1))), at)
    torch.testing.assert_close(by_view(toy, change, x, clean), wanted)


def test_a_resumed_admix_has_the_same_images(toy: Victim) -> None:
    x, y = toy_pictures(20), torch.zeros(20, dtype=torch.long)
    fresh = attack_text.build("restarts(2, admix(pgd(steps=2), others=1, scales=1))", LINF)
    ready = fresh.prepare(toy, lambda: (x, y), rng=RNG)
    again = fresh.recall(toy, ready.learned())
    pools = [part.parts[0].change.pool for part in (ready, again)]  # type: ignore[attr-defined]
    assert len(pools[0]) == 16 and torch.equal(*pools)
    assert "calibration" not in " ".join(again.doubts())


def test_patchout_shows_some_patches_of_the_perturbation_alone(toy: Victim, images: tuple[Tensor, Tensor]) -> None:
    clean, x = images
    change = PatchOut(share=0.25, side=8, norm_weight=0.0)
    mask = torch.zeros(3, 1, 32, 32)
    for number in range(3):
        order = RNG.child("patchout", 0).generator(number).permutation(16)
        for patch in order[:4]:
            row, column = divmod(int(patch), 4)
            mask[number, :, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = 1
    at = x.clone().requires_grad_()
    wanted = by_hand(loss(toy(torch.where(mask == 1, at, clean))), at)
    found = by_view(toy, change, x, clean)
    torch.testing.assert_close(found, wanted)
    assert not found[mask.expand_as(found) == 0].any()
    # the norm of each change, weighted, adds a tenth of its direction
    delta = (x - clean).flatten(1)
    more = (0.1 * delta / delta.norm(dim=1, keepdim=True)).view_as(x)
    torch.testing.assert_close(by_view(toy, replace(change, norm_weight=0.1), x, clean), wanted + more)


def test_patches_are_drawn_anew_in_every_step_and_fit_any_size() -> None:
    change = PatchOut(side=5, share=0.5)
    x = torch.rand(2, 3, 12, 12)
    view = Changed(Victim(torch.nn.Flatten(), name="flat", num_classes=432, input_size=12), [change])
    view.follow(torch.zeros_like(x), SampleRng(0, (4, 9)))
    one, two = (view(x.clone().requires_grad_()).view_as(x) != 0 for _ in range(2))
    assert not torch.equal(one, two) and not torch.equal(one[0], one[1])
    corners = one[:, 0, ::5, ::5].flatten(1).sum(1)
    assert corners.tolist() == [4, 4]  # of nine patches


def test_views_in_each_other_share_one_and_patchout_sees_the_candidates(toy: Victim) -> None:
    attack = attack_text.build("patchout(si(di(pgd(steps=1, stop=never)), copies=2))", LINF)
    assert isinstance(attack, ThroughView)
    stacked = Changed(toy, (ScaleInvariant(2), attack.change))
    assert [type(change) for change in stacked.changes] == [PatchOut, ScaleInvariant]
    x = toy_pictures(3)
    with counting_passes(toy) as passes:
        crafted = attack(toy, x, torch.tensor([1, 2, 3]), rng=RNG)
    assert passes.backwards == int(crafted.evidence["backwards"].sum()) == 2 * 3


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("di(fab)", "put pgd, mim, apgd"),
        ("patchout(worst(pgd, square))", "put pgd, mim, apgd"),
        ("si(fab)", "no loss to replace"),
        ("ti(aas(pgd))", "do not hold each other"),
        ("ti(transfer('tiny-vit', di(mim)))", "belongs inside transfer"),
        ("eot(di(pgd))", "do not hold each other"),
        ("ti(pgd, size=4)", "an odd size"),
        ("di(pgd, rate=0.5)", "a rate from 1 to 4"),
        ("si(pgd, copies=0)", "1 to 20 copies"),
        ("admix(pgd, others=0)", "1 to 20 other images"),
        ("patchout(pgd, share=0)", "above 0 and at most 1"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(text: str, cause: str) -> None:
    with pytest.raises(UsageError, match=cause) as refusal:
        attack_text.build(text, LINF)
    assert "\n" not in str(refusal.value)
