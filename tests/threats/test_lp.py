"""The budget, the box, and what may be said on the command line."""

from __future__ import annotations

import pytest
import torch

from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.threats.base import parse_threat
from vitattack.threats.lp import LpBall, unit_l2

X = torch.rand(64, 3, 6, 6, generator=torch.Generator().manual_seed(0))
RNG = SampleRng(0, tuple(range(64)))
BALLS = [LpBall("linf", 8 / 255), LpBall("l2", 0.5)]


@pytest.mark.parametrize("ball", BALLS, ids=str)
def test_projection_lands_in_ball_and_box_and_keeps_what_is_there(ball: LpBall) -> None:
    wild = X + 0.3 * torch.randn(X.shape, generator=torch.Generator().manual_seed(1))
    back = ball.project(X, wild)
    assert ball.allows(X, back).all()
    assert torch.allclose(ball.project(X, back), back, atol=1e-7)
    assert not ball.allows(X, wild).any()


@pytest.mark.parametrize("ball", BALLS, ids=str)
def test_random_points_are_allowed_and_fill_the_ball(ball: LpBall) -> None:
    inside = torch.full_like(X, 0.5)
    points = ball.random(inside, RNG)
    assert ball.allows(inside, points).all()
    sizes = ball.size(inside, points)
    if ball.norm == "linf":  # the mean of |u| over pixels is a half
        assert float((points - inside).abs().mean()) == pytest.approx(ball.eps / 2, rel=0.02)
    else:  # r = u^(1/d): nearly all of the mass is near the sphere
        assert float(sizes.mean()) == pytest.approx(ball.eps * 108 / 109, rel=0.01)


def test_allows_refuses_what_it_must() -> None:
    ball, x = LpBall("linf", 0.1), torch.full((5, 1, 2, 2), 0.95)
    x_adv = x.clone()
    x_adv[0] += 0.05
    x_adv[1, 0, 0, 0] -= 0.1001
    x_adv[2, 0, 0, 0] = float("nan")
    x_adv[3, 0, 0, 0] = 1.0001
    assert ball.allows(x, x_adv).tolist() == [True, False, False, False, True]


def test_unit_steps_survive_tiny_and_zero_gradients() -> None:
    grad = torch.stack([torch.full((1, 4, 4), 1e-38), torch.zeros(1, 4, 4), torch.full((1, 4, 4), 3.0)])
    assert unit_l2(grad).flatten(1).norm(dim=1).tolist() == pytest.approx([1, 0, 1])


@pytest.mark.parametrize(
    ("text", "canonical"),
    [("linf:8/255", "linf:8/255"), ("linf:16/510", "linf:8/255"), ("l2:0.5", "l2:0.5"), ("linf:0.031", "linf:0.031")],
)
def test_threats_have_one_text(text: str, canonical: str) -> None:
    assert str(parse_threat(text)) == canonical
    assert parse_threat(canonical) == parse_threat(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("linf", "write linf:8/255 or l2:8/255"),
        ("", "write linf:8/255 or l2:8/255"),
        ("8", "names no norm: write linf:8 or l2:8"),
        ("8/255", "names no norm: write linf:8/255"),
        ("linf:8", "write linf:8/255 if you mean 8-bit steps"),
        ("l2:128", "write l2:128/255"),
        ("linf:eight", "is not a number"),
        ("linf:1/0", "is not a number"),
        ("linf:-0.1", "is not a linf budget"),
        ("linf:nan", "is not a linf budget"),
        ("l_inf:8/255", "did you mean linf"),
    ],
)
def test_wrong_threats_are_answered_with_the_fix(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_threat(text)


def test_noise_depends_on_the_sample_alone() -> None:
    whole = RNG.uniform(X)
    rows = torch.tensor([5, 40, 63])
    assert torch.equal(RNG[rows].uniform(X[rows]), whole[rows])
    mask = torch.zeros(64, dtype=torch.bool).index_fill(0, rows, True)
    assert torch.equal(RNG[mask].uniform(X[mask]), whole[rows])
    assert not torch.equal(RNG.child("restart", 1).uniform(X), whole)
    assert not torch.equal(SampleRng(1, RNG.index).uniform(X), whole)
    assert torch.equal(RNG.child("a").uniform(X), RNG.child("a").uniform(X))
    state = torch.get_rng_state()
    RNG.normal(X)
    assert torch.equal(torch.get_rng_state(), state)
