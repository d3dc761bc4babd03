"""Starts lie where their names say."""

from __future__ import annotations

import pytest
import torch

from vitattack.attacks import attack_text
from vitattack.attacks.compose import Stages
from vitattack.attacks.gradient.loop import Gradient
from vitattack.attacks.gradient.starts import Clean, Corner, Edge, Gauss, Uniform
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.threats.lp import LpBall

VICTIM = torch.nn.Flatten()  # no start here asks it
X = torch.full((8, 3, 16, 16), 0.5, dtype=torch.float64)
RNG = SampleRng(0, tuple(range(8)))


@pytest.mark.parametrize("ball", [LpBall("linf", 0.1), LpBall("l2", 0.5)], ids=str)
def test_every_start_in_both_norms(ball: LpBall) -> None:
    def size(start: object) -> torch.Tensor:
        point = start(ball, X, victim=VICTIM, rng=RNG)  # type: ignore[operator]
        assert ball.allows(X, point).all()
        return ball.size(X, point)

    full = torch.full((8,), ball.eps, dtype=torch.float64)
    assert torch.equal(size(Clean()), torch.zeros_like(full))
    assert torch.allclose(size(Edge()), full)  # stretched until it touches
    assert torch.allclose(size(Corner()), full)
    assert bool((size(Uniform()) < full).all()) and bool((size(Uniform()) > 0.9 * full).all())
    if ball.norm == "linf":
        assert torch.allclose((Corner()(ball, X, victim=VICTIM, rng=RNG) - X).abs(), torch.full_like(X, 0.1))
    for std in (0.001, 0.01):
        assert float((Gauss(std)(LpBall("linf", 1.0), X, victim=VICTIM, rng=RNG) - X).std()) == pytest.approx(
            std, rel=0.05
        )


def test_restarts_of_restarts_repeat_nothing() -> None:
    """Four runs of a loop that cannot move show their four starts."""
    seen = []

    class Watching:
        passes = 0

        def __call__(self, ball: LpBall, x: torch.Tensor, *, victim: torch.nn.Module, rng: SampleRng) -> torch.Tensor:
            seen.append(ball.random(x, rng))
            return seen[-1]

    class Flat(Attackable):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 0 * x.flatten(1).sum(1, keepdim=True) + torch.tensor([1.0, 0.0])

    loop = Gradient(LpBall("linf", 0.1), 1, start=Watching())
    twice = Stages((Stages((loop, loop), fresh=True),) * 2, fresh=True)
    twice(Flat(), X, torch.zeros(8, dtype=torch.long), rng=RNG)
    assert len(seen) == 4
    for i in range(4):
        for j in range(i):
            assert not torch.equal(seen[i], seen[j])
    pma = attack_text.build("pma", LpBall("linf", 0.1))
    assert isinstance(pma, Stages) and pma.fresh  # its two runs begin in different places
