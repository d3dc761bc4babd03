"""Gradient fidelity is one for a linear model, near one for smooth ones, and zero where gradients promise what is not kept."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import tiny_vit, toy_pictures
from vitattack.attacks.gradient.fidelity import TRUSTED, gradient_fidelity
from vitattack.core.rng import SampleRng
from vitattack.models.gradients.agreement import agreement
from vitattack.models.victim import Victim
from vitattack.threats.lp import LpBall
from vitattack.threats.sparse import L1Ball

BALLS = (LpBall("linf", 8 / 255), LpBall("l2", 1.0), L1Ball("l1", 12.0))


class Behind(nn.Module):
    def __init__(self, model: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.change = model, change

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(self.change(x))
        return logits


def fidelity(model: nn.Module, ball: LpBall) -> float:
    victim = Victim(model, name="m", num_classes=10, input_size=32).eval()
    x = toy_pictures(8)
    with torch.no_grad():
        y = victim(x).argmax(1)
    found = gradient_fidelity(victim, ball, x, y, SampleRng(0, tuple(range(8))))
    assert not found.requires_grad and found.shape == (8,)
    return float(found.median())


@pytest.mark.parametrize("ball", BALLS, ids=str)
def test_a_linear_model_keeps_every_promise(ball: LpBall) -> None:
    torch.manual_seed(0)
    assert fidelity(nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10)), ball) > 0.999


@pytest.mark.parametrize("ball", BALLS, ids=str)
def test_masked_gradients_keep_none(ball: LpBall) -> None:
    plain = tiny_vit()
    assert fidelity(plain, ball) > 0.9
    changes: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda x: (x * 16).round() / 16,
        lambda x: (x * 16).round() / 16 + 1e-3 * x,
        lambda x: x + 1e-3 * torch.sin(2 * math.pi * 1e4 * x),
        lambda x: x + 0.1 * torch.randn_like(x),
        lambda x: x.detach(),
    )
    for change in changes:
        assert fidelity(Behind(plain, change), ball) < 0.2 < TRUSTED


def test_agreement_is_one_for_equal_changes_and_none_for_opposite_or_missing_ones() -> None:
    predicted, actual = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0]), torch.tensor([1.0, 0.5, -1.0, 1.0, 0.0])
    assert agreement(predicted, actual).tolist() == pytest.approx([1, 2 / 3, 0, 0, 0])
