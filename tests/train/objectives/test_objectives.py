"""Objectives against values computed from their formulas, and the images they are trained on."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.conftest import batch, linear_victim, tiny_vit, toy_pictures
from tests.train.small_runs import affine
from vitattack.attacks import attack_text
from vitattack.core.errors import UsageError
from vitattack.threats.lp import LpBall
from vitattack.train import recipe_parts  # noqa: F401  # registers the kinds
from vitattack.train.data.batch import batch_rng
from vitattack.train.objectives.base import Objective

BALL = LpBall("linf", 8 / 255)
X = torch.tensor([[0.2, 0.5, 0.9], [0.7, 0.1, 0.4]]).view(2, 3, 1, 1)
X_ADV = X + torch.tensor([0.03, -0.02, 0.01]).view(1, 3, 1, 1)
Y = torch.tensor([1, 3])


def objective(text: str, ball: LpBall = BALL) -> Objective:
    made: Objective = attack_text.parse_part(text, Objective, ball)[0]
    return made


def probabilities(x: Tensor) -> list[list[float]]:
    """Softmax in double precision, written out."""
    logits = affine()(x).double().tolist()
    sums = [sum(math.exp(v) for v in row) for row in logits]
    return [[math.exp(v) / total for v in row] for row, total in zip(logits, sums, strict=True)]


def kl(p: list[float], q: list[float]) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def test_trades_is_clean_cross_entropy_plus_beta_kl() -> None:
    p, q = probabilities(X), probabilities(X_ADV)
    wanted = sum(-math.log(p[i][int(y)]) + 6 * kl(p[i], q[i]) for i, y in enumerate(Y)) / 2
    found = objective("trades(beta=6)").loss(affine(), X, X_ADV, Y)
    assert float(found.detach()) == pytest.approx(wanted, rel=1e-5)


def test_both_terms_of_trades_reach_the_clean_output() -> None:
    victim = affine()
    loss = objective("trades").loss(victim, X, X_ADV, Y)
    (both,) = torch.autograd.grad(loss, victim.model.weight)
    step = 1e-3
    with torch.no_grad():
        moved = []
        for sign in (1, -1):
            victim.model.weight[0, 0] += sign * step
            moved.append(float(objective("trades").loss(victim.double(), X.double(), X_ADV.double(), Y)))
            victim.float()
            victim.model.weight[0, 0] -= sign * step
    assert float(both[0, 0]) == pytest.approx((moved[0] - moved[1]) / (2 * step), rel=1e-2)


def test_mart_counts_kl_by_how_wrong_the_clean_output_is() -> None:
    p, q = probabilities(X), probabilities(X_ADV)
    wanted = 0.0
    for i, y in enumerate(map(int, Y)):
        wrong = max(v for j, v in enumerate(q[i]) if j != y)
        boosted = -math.log(q[i][y]) - math.log(1.0001 - wrong + 1e-12)
        wanted += boosted + 5 * kl(p[i], q[i]) * (1.0000001 - p[i][y])
    found = objective("mart").loss(affine(), X, X_ADV, Y)
    assert float(found.detach()) == pytest.approx(wanted / 2, rel=1e-5)


def test_mart_has_a_gradient_where_the_clean_output_leaves_a_class_out() -> None:
    victim = affine()
    with torch.no_grad():
        victim.model.bias[:] = torch.tensor([200.0, 0.0, 0.0, 0.0])
    assert float(victim(X).softmax(1).detach().min()) == 0.0
    loss = objective("mart").loss(victim, X, X_ADV, Y)
    (grad,) = torch.autograd.grad(loss, victim.model.weight)
    assert bool(torch.isfinite(loss.detach())) and bool(torch.isfinite(grad).all())


@pytest.mark.parametrize("text", ["standard(smoothing=0.4)", "pgd_at(smoothing=0.4)", "trades(beta=0, smoothing=0.4)"])
def test_label_smoothing_mixes_in_the_mean_over_classes(text: str) -> None:
    seen = X_ADV if text.startswith("pgd_at") else X
    p = probabilities(seen)
    wanted = sum(0.6 * -math.log(p[i][int(y)]) + 0.4 * sum(-math.log(v) for v in p[i]) / 4 for i, y in enumerate(Y))
    assert float(objective(text).loss(affine(), X, X_ADV, Y).detach()) == pytest.approx(wanted / 2, rel=1e-5)


def test_an_inner_attack_that_needs_other_images_is_refused() -> None:
    for text in ("pgd_at(inner=aas(pgd))", "trades(inner=worst(pgd, aas(pgd)))", "mart(inner=aas(pgd))"):
        with pytest.raises(UsageError, match="such as aas, cannot train"):
            objective(text)


def test_trades_started_at_the_image_itself_is_refused() -> None:
    with pytest.raises(UsageError, match="trades started exactly at x has no gradient.*start=gauss"):
        objective("trades(inner=pgd(loss=kl_to, start=clean))")
    with pytest.raises(UsageError, match="trades started exactly at x"):
        objective("trades(inner=restarts(2, fgsm(loss=kl_to)))")


def test_trades_finds_a_direction_from_its_noisy_start() -> None:
    victim, slope = linear_victim()
    x, y = batch(4)
    x_adv = objective("trades").craft(victim, x, y, rng=batch_rng(0, 0, 0, 4))
    reached = ((x_adv - x).flatten(1) @ slope).abs()  # KL grows on both sides of x
    assert bool((reached > 0.9 * BALL.eps * slope.abs().sum()).all())


def test_noisy_fgsm_takes_a_whole_step_from_twice_the_budget_unprojected() -> None:
    victim, slope = linear_victim()
    x, y = batch(16)
    x_adv = objective("fgsm").craft(victim, x, y, rng=batch_rng(0, 0, 0, 16))
    noise = x_adv - x - BALL.eps * slope.sign().view(1, *x.shape[1:])
    assert float(noise.abs().amax()) <= 2 * BALL.eps + 1e-9
    assert float(noise.abs().amax()) > 1.98 * BALL.eps
    assert float(noise.std()) == pytest.approx(4 * BALL.eps / math.sqrt(12), rel=0.05)


def test_fgsm_from_a_random_start_stays_in_the_ball() -> None:
    victim, slope = linear_victim()
    x, y = batch(64)
    x_adv = objective("fgsm(kind=rs)").craft(victim, x, y, rng=batch_rng(0, 0, 0, 64))
    assert bool(BALL.allows(x, x_adv).all())
    share = ((x_adv - x).flatten(1) @ slope / (BALL.eps * slope.abs().sum())).mean()
    assert float(share) == pytest.approx(1 - 0.75**2 / 4, abs=0.01)  # E min(u + 1.25, 1)


@pytest.mark.parametrize("text", ["pgd_at", "trades", "mart", "fgsm(kind=rs)", "pgd_at(inner=apgd(steps=5))"])
def test_a_smaller_budget_cuts_steps_off_and_keeps_their_length(text: str) -> None:
    victim, slope = linear_victim()
    x, y = batch(4)
    less = objective(text).limited(BALL.eps / 4)
    x_adv = less.craft(victim, x, y, rng=batch_rng(0, 0, 0, 4))
    assert bool(LpBall("linf", BALL.eps / 4).allows(x, x_adv).all())
    assert bool((((x_adv - x).flatten(1) @ slope).abs() > 0.9 * BALL.eps / 4 * slope.abs().sum()).all())
    nothing = objective(text).limited(0.0).craft(victim, x, y, rng=batch_rng(0, 0, 0, 4))
    assert torch.equal(nothing, x)


def test_inner_attacks_make_all_their_steps() -> None:
    inner = objective("pgd_at(inner=restarts(2, pgd(steps=3)))").inner  # type: ignore[attr-defined]
    assert [run.stop for run in inner.attacks] == ["never", "never"]


def test_images_with_mixed_labels_are_attacked_on_their_mixture() -> None:
    victim, _ = linear_victim()
    x, y = batch(3)
    shares = torch.zeros(3, 5, dtype=torch.float64)
    shares[:, 0], shares[:, 1] = 0.0, 1.0  # all of it the runner-up: the attack turns round
    made = objective("pgd_at")
    rng = batch_rng(0, 0, 0, 3)
    towards, away = (made.craft(victim, x, labels, rng=rng) for labels in (y, shares))
    gap = victim(away)[:, 1] - victim(towards)[:, 1]
    assert bool((gap < 0).all())
    with pytest.raises(UsageError, match="mart needs class numbers"):
        objective("mart").loss(victim, x, x, shares)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("trades(beta=-1)", "at least 0"),
        ("standard(smoothing=1)", "from 0 to below 1"),
        ("fgsm(kind=rs, noise=1)", "noise is for kind=n"),
        ("fgsm(kind=m)", "kind"),
        ("tradez", "did you mean trades"),
    ],
)
def test_mistakes_are_named(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        objective(text)


def test_an_attack_of_many_parts_keeps_their_kinds() -> None:
    """`auto` holds named tuples; training makes all its steps, and warms up its budget."""
    victim, x, rng = tiny_vit(), toy_pictures(2), batch_rng(0, 0, 0, 2)
    made = objective("pgd_at(inner=auto)")
    for eps, reach in ((8 / 255, made), (2 / 255, made.limited(2 / 255))):
        x_adv = reach.craft(victim, x, torch.tensor([0, 1]), rng=rng)
        assert 0 < float((x_adv - x).abs().max()) <= eps + 1e-6
