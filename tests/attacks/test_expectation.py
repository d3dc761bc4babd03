"""Attacks on random models average over answers; noise and guided starts cost what they say."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from vitattack.attacks import attack_text
from vitattack.attacks.gradient.loop import Gradient
from vitattack.attacks.gradient.starts import OutputDiversified
from vitattack.attacks.gradient.steps import Steepest
from vitattack.attacks.losses.base import Moment, loss_value
from vitattack.attacks.losses.plain import CrossEntropy
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.passes import counting_passes
from vitattack.models.victim import Victim
from vitattack.threats.lp import LpBall

BALL = LpBall("linf", 8 / 255)


class Noisy(nn.Module):
    """A linear model whose weights are drawn anew for every forward."""

    def __init__(self, spread: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 48, generator=torch.Generator().manual_seed(2)))
        self.spread = spread

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ (self.weight + self.spread * torch.randn(5, 48)).T


def noisy(spread: float) -> Victim:
    return Victim(Noisy(spread), name="noisy", num_classes=5, input_size=4)


X, Y = torch.full((4, 3, 4, 4), 0.5), torch.zeros(4, dtype=torch.long)
RNG = SampleRng(0, (0, 1, 2, 3))


def test_the_loss_is_averaged_not_the_logits() -> None:
    answers = torch.tensor([[[4.0, 0.0]], [[0.0, 4.0]]])
    y = torch.zeros(1, dtype=torch.long)
    one, other = (CrossEntropy()(answer, y) for answer in answers)
    assert torch.allclose(loss_value(CrossEntropy(), answers, y, {}, Moment(0, 1)), (one + other) / 2)


def test_averaging_finds_the_direction_that_noise_hides() -> None:
    """Against the expected gradient of a linear model with noise three times its weights."""
    torch.manual_seed(0)
    model = noisy(3.0)
    slope = (model.model.weight[1:].mean(0) - model.model.weight[0]).detach()  # type: ignore[union-attr, index, operator]

    def agreement(text: str) -> float:
        delta = attack_text.build(text, BALL)(model, X, Y, rng=RNG).x_adv - X
        return float((delta.flatten(1).sign() == slope.sign()).float().mean())

    single = agreement("pgd(steps=1, step=1, start=clean, loss=margin_targeted(rank=1), stop=never)")
    many = agreement("eot(pgd(steps=1, step=1, start=clean, loss=ce, stop=never), n=400)")
    assert many > single + 0.15, (single, many)


def test_every_answer_is_paid_for() -> None:
    model = noisy(0.0)
    with counting_passes(model) as passes:
        crafted = attack_text.build("eot(pgd(steps=3, stop=never), n=7)", BALL)(model, X, Y, rng=RNG)
    assert passes.forwards == int(crafted.evidence["forwards"].sum()) == 4 * 3 * (7 + 1)  # and one for the verdict
    assert passes.backwards == int(crafted.evidence["backwards"].sum()) == 4 * 3 * 7


def test_without_noise_averaging_changes_nothing() -> None:
    model = noisy(0.0)
    alone = attack_text.build("pgd(steps=5, stop=never)", BALL)(model, X, Y, rng=RNG).x_adv
    averaged = attack_text.build("eot(pgd(steps=5, stop=never), n=3)", BALL)(model, X, Y, rng=RNG).x_adv
    assert torch.allclose(alone, averaged, atol=1e-6)


def test_output_diversified_starts_differ_by_sample_and_cost_their_steps() -> None:
    model = noisy(0.0)
    start = OutputDiversified(steps=2)
    point = start(BALL, X, victim=model, rng=RNG)
    assert BALL.allows(X, point).all()
    assert torch.allclose((point - X).abs(), torch.full_like(X, BALL.eps), atol=1e-6)  # two steps of eps: a corner
    assert len({tuple(row.flatten().sign().tolist()) for row in point - X}) > 1
    with counting_passes(model) as passes:
        crafted = Gradient(BALL, 3, Steepest(), start=start, stop="never")(model, X, Y, rng=RNG)
    assert passes.forwards == int(crafted.evidence["forwards"].sum()) == 4 * (2 + 3)
    assert passes.backwards == int(crafted.evidence["backwards"].sum()) == 4 * (2 + 3)


def test_more_noise_is_never_weaker() -> None:
    model = noisy(0.0)
    wide = LpBall("linf", 0.3)
    y = model(X).argmax(1)
    once, often = (attack_text.build(f"random(tries={n})", wide)(model, X, y, rng=RNG).evidence for n in (1, 20))
    assert bool((often["fooled"] >= once["fooled"]).all())
    assert often["forwards"][~often["fooled"]].tolist() == [20] * int((~often["fooled"]).sum())


def test_targets_are_averaged_over_too() -> None:
    model = noisy(0.0)
    with counting_passes(model) as passes:
        crafted = attack_text.build("eot(worst(apgd_t(steps=3, k=2), pgd(steps=2)), n=3)", BALL)(model, X, Y, rng=RNG)
    assert passes.forwards == int(crafted.evidence["forwards"].sum())
    alone = attack_text.build("worst(apgd_t(steps=3, k=2), pgd(steps=2))", BALL)(model, X, Y, rng=RNG)
    assert torch.allclose(alone.x_adv, crafted.x_adv, atol=1e-6)
    with pytest.raises(UsageError, match="fab follows differences"):
        attack_text.build("eot(worst(pgd, fab))", BALL)
