"""l1 and l0 balls: projections against quadratic programs solved by enumeration, random points, and their texts."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.threats.base import parse_threat
from vitattack.threats.lp import LpBall
from vitattack.threats.sparse import L0Ball, L1Ball, nearest_in_l1

N, PIXELS = 48, 5
GENERATOR = torch.Generator().manual_seed(0)
SMALL = torch.rand(N, 1, 1, PIXELS, generator=GENERATOR, dtype=torch.float64)
WILD = SMALL + torch.randn(SMALL.shape, generator=GENERATOR, dtype=torch.float64)
X = torch.rand(32, 3, 16, 16, generator=GENERATOR)
FAR = X + 0.5 * torch.randn(X.shape, generator=GENERATOR)
RNG = SampleRng(0, tuple(range(32)))
BALLS = [L1Ball("l1", 6.0), L0Ball("l0", 9), L0Ball("l0", 20, "features")]
every_ball = pytest.mark.parametrize("ball", BALLS, ids=str)


def quadratic_program(x: list[float], wild: list[float], eps: float) -> list[float]:
    """The nearest point with |d|_1 <= eps and x + d in [0,1], over every choice of zero, free and stuck entries.

    Signs are those of the wish: any other costs budget and distance. With a choice fixed, the free entries are a projection
    onto the plane where the budget is used up, or the wish itself where it is not.
    """
    delta = [w - v for w, v in zip(wild, x, strict=True)]
    room = [1 - v if d > 0 else v for d, v in zip(delta, x, strict=True)]
    best, found = math.inf, [0.0] * len(x)
    for kinds in itertools.product(["zero", "free", "stuck"], repeat=len(x)):
        free = [i for i, kind in enumerate(kinds) if kind == "free"]
        for used_up in (False, True):
            move = [room[i] if kind == "stuck" else 0.0 for i, kind in enumerate(kinds)]
            excess = sum(move) + sum(abs(delta[i]) for i in free) - eps
            for i in free:
                move[i] = abs(delta[i]) - (excess / len(free) if used_up else 0.0)
            if sum(move) > eps + 1e-12 or any(not -1e-12 <= m <= r + 1e-12 for m, r in zip(move, room, strict=True)):
                continue
            distance = sum((abs(d) - m) ** 2 for d, m in zip(delta, move, strict=True))
            if distance < best:
                best, found = distance, [math.copysign(m, d) for d, m in zip(delta, move, strict=True)]
    return found


@pytest.mark.parametrize("eps", [0.0, 0.05, 0.4, 1.3, 3.0])
def test_the_l1_projection_solves_its_quadratic_program(eps: float) -> None:
    projected = L1Ball("l1", eps).project(SMALL, WILD) - SMALL
    solved = [
        quadratic_program(x, wild, eps)
        for x, wild in zip(SMALL.flatten(1).tolist(), WILD.flatten(1).tolist(), strict=True)
    ]
    assert torch.allclose(projected.flatten(1), torch.tensor(solved, dtype=torch.float64), atol=1e-10)


def test_every_row_of_an_l1_projection_has_its_own_budget_and_no_influence_on_others() -> None:
    delta, room = (WILD - SMALL).flatten(1), torch.rand(N, PIXELS, dtype=torch.float64, generator=GENERATOR)
    eps = torch.linspace(0, 3, N, dtype=torch.float64)
    together = nearest_in_l1(delta, room, eps)
    for i in range(N):
        assert torch.equal(nearest_in_l1(delta[i : i + 1], room[i : i + 1], eps[i : i + 1])[0], together[i])


@pytest.mark.parametrize("count", range(PIXELS + 1))
def test_the_l0_projection_keeps_the_best_of_all_subsets(count: int) -> None:
    projected = L0Ball("l0", count).project(SMALL, WILD)
    clipped = WILD.clamp(0, 1)
    for x, wild, nearest, got in zip(SMALL, WILD, clipped, projected, strict=True):
        distances = []
        for chosen in itertools.combinations(range(PIXELS), count):
            point = x.clone()
            point[..., list(chosen)] = nearest[..., list(chosen)]
            distances.append(float((point - wild).square().sum()))
        assert float((got - wild).square().sum()) == pytest.approx(min(distances), abs=1e-12)
        assert int((got != x).sum()) <= count


def test_a_pixel_counts_once_for_all_of_its_channels() -> None:
    x = torch.full((1, 3, 2, 2), 0.5)
    wild = x.clone()
    wild[0, :, 0, 0] += torch.tensor([0.2, 0.2, 0.2])  # together more than the one below
    wild[0, 0, 1, 1] += 0.3
    by_pixel, by_feature = (L0Ball("l0", 1, unit) for unit in ("px", "features"))  # type: ignore[arg-type]
    assert torch.equal(by_pixel.project(x, wild) != x, (wild != x) & (torch.arange(4).view(2, 2) == 0))
    assert by_feature.project(x, wild)[0, 0, 1, 1] == wild[0, 0, 1, 1]
    assert by_pixel.size(x, wild).tolist() == [2] and by_feature.size(x, wild).tolist() == [4]
    assert not by_pixel.allows(x, wild).any()


@every_ball
def test_projections_land_in_ball_and_box_and_keep_what_is_there(ball: LpBall) -> None:
    back = ball.project(X, FAR)
    assert ball.allows(X, back).all() and not ball.allows(X, FAR).any()
    assert torch.allclose(ball.project(X, back), back, atol=1e-6)
    assert (ball.size(X, back) >= 0.999 * ball.eps).all()  # nothing of the budget is lost to the box


@every_ball
def test_random_points_are_allowed_and_use_the_budget(ball: LpBall) -> None:
    inside = torch.full_like(X, 0.5)
    points = ball.random(inside, RNG)
    assert ball.allows(inside, points).all()
    assert float(ball.size(inside, points).mean()) == pytest.approx(ball.eps, rel=0.01)
    rows = torch.tensor([3, 30])
    assert torch.equal(ball.random(inside[rows], RNG[rows]), points[rows])
    assert not torch.equal(ball.random(inside, SampleRng(1, RNG.index)), points)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [("l1:12", "l1:12"), ("l1:3060/255", "l1:12"), ("l0:20px", "l0:20px"), (" l0: 60features", "l0:60features")],
)
def test_threats_have_one_text(text: str, canonical: str) -> None:
    assert str(parse_threat(text)) == canonical and parse_threat(canonical) == parse_threat(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("l1", "names no budget: write l1:12"),
        ("l1:twelve", "is not a number: write l1:12"),
        ("l1:-1", "is not an l1 budget"),
        ("l1:inf", "is not an l1 budget"),
        ("l0", "write l0:20px for pixels or l0:60features"),
        ("l0:20", "write l0:20px for pixels or l0:60features"),
        ("l0:2.5px", "write l0:20px for pixels"),
        ("l0:20000000px", "is no number of px"),
    ],
)
def test_wrong_threats_are_answered_with_the_fix(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_threat(text)


def test_balls_of_another_class_are_named() -> None:
    with pytest.raises(UsageError, match="use L1Ball"):
        LpBall("l1", 12.0)
    with pytest.raises(UsageError, match="write l1:12"):
        L1Ball("l2", 1.0)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="write l0:20px"):
        L0Ball("l0", 3, "channels")  # type: ignore[arg-type]
