"""APGD in l1: the closed form of a linear victim at the edge of the box, its phases, and candidates inside the budget alone."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import batch, linear_victim, tiny_vit, toy_pictures
from vitattack.attacks import attack_text
from vitattack.attacks.gradient.sparse_apgd import Phase, SparseAutoStep
from vitattack.attacks.price import PassesPerImage, PriceQuery
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.threats.base import parse_threat
from vitattack.threats.sparse import L1Ball

BALL = L1Ball("l1", 2.5)


@pytest.mark.parametrize("text", ["apgd(loss=margin, stop=never)", "apgd_ce(stop=never)", "apgd_t(k=1, stop=never)"])
def test_it_reaches_the_optimum_of_a_linear_victim(text: str) -> None:
    """Which moves the pixels of the largest slopes to the edge of the box, one after another, until the budget is spent."""
    victim, slope = linear_victim()
    x, y = batch(4)
    flat = x.flatten(1)
    room = torch.where(slope > 0, 1 - flat, flat)
    order = slope.abs().argsort(descending=True)
    sorted_room = room[:, order]
    moved = (BALL.eps - (sorted_room.cumsum(1) - sorted_room)).clamp_min(0).minimum(sorted_room)
    assert ((moved > 0).sum(1) > 2).all()  # so the box is what ends most moves
    best = (moved * slope.abs()[order]).sum(1)
    x_adv = attack_text.build(text, BALL)(victim, x, y, rng=SampleRng(0, tuple(range(4)))).x_adv
    assert BALL.allows(x, x_adv).all()
    reached = ((x_adv - x).flatten(1) @ slope) / best
    assert (reached >= 0.97).all() and (reached <= 1 + 1e-6).all(), reached


def test_phases_shrink_to_the_budget() -> None:
    rule = SparseAutoStep()
    assert rule.phases(102) == (Phase(0, 30, 3.0, 1), Phase(31, 61, 2.0, 1), Phase(62, 102, 1.0, 1))
    assert SparseAutoStep(shrinking=False).phases(100) == (Phase(0, 100, 1.0, 4),)
    for steps in range(1, 40):
        last = rule.phases(steps)[-1]
        assert last.end == steps and last.radius == 1 and last.begin < steps
    assert rule.widest(BALL, 102).eps == 3 * BALL.eps


def test_what_lies_outside_the_budget_fools_nobody() -> None:
    """Iterates of the first phases fool more; only those within the budget end an attack or count as claims."""
    victim, x = tiny_vit(), toy_pictures(12)
    with torch.no_grad():
        y = victim(x).argmax(1)
    ball = L1Ball("l1", 1.0)
    crafted = attack_text.build("apgd_ce(steps=20)", ball)(victim, x, y, rng=SampleRng(0, tuple(range(12))))
    wide = attack_text.build("apgd_ce(steps=20)", L1Ball("l1", 3.0))
    by_far = wide(victim, x, y, rng=SampleRng(0, tuple(range(12)))).evidence["fooled"]
    assert 0 < int(crafted.evidence["fooled"].sum()) < int(by_far.sum())
    assert ball.allows(x, crafted.x_adv).all()
    with torch.no_grad():
        wrong = victim(crafted.x_adv).argmax(1) != y
    assert torch.equal(wrong, crafted.evidence["fooled"])
    assert (crafted.evidence["margin"][crafted.evidence["fooled"]] >= 0).all()


def test_autoattack_in_l1_is_that_of_the_package() -> None:
    """Five restarts of APGD on cross-entropy, five targets on DLR; two moves to a smaller ball beside 100 steps."""
    threat = parse_threat("l1:12")
    price = attack_text.build("autoattack", threat).price(PriceQuery(10, threat)).victim
    forwards = 5 * 103 + (1 + 5 * 103) + (1 + 9 * 101) + 5001
    assert PassesPerImage(price.forwards, price.backwards) == PassesPerImage(forwards, 5 * 102 + 5 * 102 + 909)


@pytest.mark.parametrize(
    ("text", "said"),
    [("apgd(rho=0.5)", "rho is for linf and l2"), ("apgd(steps=0)", "at least 1"), ("apgd(size=0)", "1")],
)
def test_wrong_options_are_named(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        attack_text.build(text, BALL)
