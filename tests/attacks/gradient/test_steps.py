"""Schedules and step rules against the tables of their papers."""

from __future__ import annotations

import math

import pytest
import torch

from vitattack.attacks import attack_text
from vitattack.attacks.gradient.apgd import AutoStep
from vitattack.attacks.gradient.loop import Gradient
from vitattack.attacks.gradient.steps import Cosine, HeavyBall, Linear, Milestones, Momentum, Steepest
from vitattack.core.errors import UsageError
from vitattack.threats.lp import LpBall

BALL = LpBall("linf", 0.1)


def test_gama_steps_drop_at_60_and_85_percent() -> None:
    gama = attack_text.build("gama", BALL)
    assert isinstance(gama, Gradient) and isinstance(gama.rule, Steepest)
    sizes = [gama.rule.size * gama.rule.schedule(t, 100) for t in (0, 59, 60, 84, 85, 99)]
    assert sizes == pytest.approx([2, 2, 0.2, 0.2, 0.02, 0.02])
    assert [Milestones()(t, 20) for t in (11, 12, 16, 17)] == pytest.approx([1, 0.1, 0.1, 0.01])


def test_linear_and_cosine_schedules() -> None:
    assert [Linear()(t, 10) for t in (0, 5, 9)] == pytest.approx([1, 0.5, 0.1])
    assert [Cosine()(t, 10) for t in (0, 5, 10)] == pytest.approx([1, 0.5, 1])  # a new cycle begins at the end
    assert [Cosine(floor=0.1, cycles=2)(t, 20) for t in (0, 5, 10, 15)] == pytest.approx([1, 0.55, 1, 0.55])


def test_momentum_sums_l1_normalised_gradients() -> None:
    rule, x = Momentum(size=0.1, decay=0.5), torch.full((1, 1, 1, 2), 0.5)
    state = rule.init(x, 2)
    x1, state = rule.step(x, x, torch.tensor([[[[4.0, -4.0]]]]), torch.zeros(1), state, BALL)
    assert torch.allclose(x1 - x, torch.tensor([[[[0.01, -0.01]]]]))
    # the sum is now 0.5 * (1, -1) + (0.8, 1.2): both positive
    x2, _ = rule.step(x, x1, torch.tensor([[[[0.2, 0.3]]]]), torch.zeros(1), state, BALL)
    assert torch.allclose(x2 - x1, torch.tensor([[[[0.01, 0.01]]]]))


def test_heavy_ball_averages_the_last_move() -> None:
    rule, x = HeavyBall(size=0.4, weight=0.75), torch.full((1, 1, 1, 1), 0.5)
    up, down = torch.ones_like(x), -torch.ones_like(x)
    x1, state = rule.step(x, x, up, torch.zeros(1), rule.init(x, 9), BALL)
    assert float(x1 - x) == pytest.approx(0.04)  # the first step is whole
    x2, _ = rule.step(x, x1, down, torch.zeros(1), state, BALL)
    assert float(x2 - x1) == pytest.approx(0.75 * -0.04 + 0.25 * 0.04, abs=1e-6)


def test_presets_are_the_papers() -> None:
    def settings(text: str) -> tuple[int, float]:
        attack = attack_text.build(text, BALL)
        assert isinstance(attack, Gradient) and isinstance(attack.rule, Steepest | Momentum)
        return attack.steps, attack.rule.size

    assert settings("pgd") == (20, 0.25)
    assert settings("pgd(preset=light2023)") == pytest.approx((10, 0.15))
    assert settings("pgd(preset=light2023, steps=2)") == pytest.approx((2, 0.75))
    assert settings("pgd(preset=bhojanapalli2021)") == (8, 0.125)
    assert settings("pgd(preset=trades)") == pytest.approx((20, 0.003 / 0.031))
    assert settings("mim") == (10, 0.1)


def test_steps_that_cannot_cross_the_budget_are_doubted() -> None:
    assert attack_text.build("pgd(preset=bhojanapalli2021)", BALL).doubts() == ()
    (doubt,) = attack_text.build("worst(pgd(steps=5, step=0.1), pgd)", BALL).doubts()
    assert "5 steps reach only 0.50 eps" in doubt


@pytest.mark.parametrize("step", [0.0, -1.0, float("inf")])
def test_a_step_must_be_positive(step: float) -> None:
    with pytest.raises(UsageError, match="goes nowhere"):
        Steepest(step)


def test_a_start_without_an_output_is_left_behind() -> None:
    """NaN compares with nothing: taken for the best loss it would call APGD back at every checkpoint."""
    rule, ball = AutoStep(), LpBall("linf", 0.1)
    x = torch.full((1, 3, 2, 2), 0.5)
    state, point = rule.init(x, 20), x
    for t in range(20):
        loss = torch.tensor([math.nan if t == 0 else float(t)])
        point, state = rule.step(x, point, torch.ones_like(x), loss, state, ball)
    assert float(state["best_loss"]) == 19.0
    assert float(point.mean()) == pytest.approx(0.6)
