"""Square where its outcome can be known: what it reaches, what it costs, what its squares depend on."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.attacks.test_closed_form import gain
from tests.conftest import batch, linear_victim
from vitattack.attacks import attack_text
from vitattack.attacks.black_box.square import QUERIES_PER_DRAW, Square
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.victim import Victim
from vitattack.threats.lp import LpBall

BALLS = {"linf": LpBall("linf", 8 / 255), "l2": LpBall("l2", 0.25)}


def test_in_l2_it_keeps_more_than_half_of_the_optimum() -> None:
    """The best direction here is noise, which hills and valleys cannot spell; in linf the optimum itself is reached."""
    reached, _ = gain("square", "l2")
    assert (reached >= 0.55).all() and (reached <= 1).all(), reached


@pytest.mark.parametrize("norm", BALLS)
def test_a_query_is_a_forward_and_the_last_is_the_one_that_fools(norm: str) -> None:
    victim, slope = linear_victim(gap=0.0)
    ball = BALLS[norm]
    # what the best attack there is needs of the budget
    need = torch.tensor([0.1, 0.4, 2.0], dtype=torch.float64) * ball.eps
    lead = need * (slope.abs().sum() if norm == "linf" else slope.norm())
    x = 0.5 - (lead[:, None] * slope / slope.square().sum()).view(3, 3, 8, 8)
    asked: list[Tensor] = []
    victim.register_forward_hook(lambda module, args, out: asked.append(args[0].clone()))
    crafted = Square(ball, 700)(victim, x, torch.zeros(3).long(), rng=SampleRng(0, (0, 1, 2)))
    fooled, first, forwards = (crafted.evidence[name] for name in ("fooled", "first_fooled", "forwards"))
    assert fooled.tolist() == [True, True, False]
    assert torch.equal(forwards[fooled], first[fooled] + 1) and int(forwards[2]) == 701 and int(first[2]) == -1
    assert [len(points) for points in asked] == [int((forwards > t).sum()) for t in range(701)]
    assert torch.equal(crafted.x_adv[0], asked[int(first[0])][0])


@pytest.mark.parametrize("norm", BALLS)
def test_more_queries_begin_as_fewer_do(norm: str) -> None:
    victim, _ = linear_victim()
    x, y = batch(2)
    runs: dict[int, list[Tensor]] = {}
    for queries in (QUERIES_PER_DRAW + 7, QUERIES_PER_DRAW + 60):
        points = runs[queries] = []
        handle = victim.register_forward_hook(lambda module, args, out, points=points: points.append(args[0].clone()))
        Square(BALLS[norm], queries)(victim, x, y, rng=SampleRng(0, (0, 1)))
        handle.remove()
    few, many = runs.values()
    assert all(torch.equal(a, b) for a, b in zip(few, many, strict=False))
    assert not torch.equal(many[0][0] - x[0], many[0][1] - x[1])  # to each sample its own


@pytest.mark.parametrize("norm", BALLS)
@pytest.mark.parametrize("shape", [(3, 8, 14), (1, 14, 9), (3, 4, 4), (1, 1, 5)])
def test_images_of_any_shape_are_attacked_inside_box_and_budget(norm: str, shape: tuple[int, int, int]) -> None:
    pixels = shape[0] * shape[1] * shape[2]
    weight = torch.randn(2, pixels, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    class Flat(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1) @ weight.T + torch.tensor([100.0, 0.0])

    victim = Victim(Flat(), name="flat", num_classes=2, input_size=shape[1], channels=shape[0])
    x = torch.rand(3, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ball = BALLS[norm]
    x_adv, evidence = Square(ball, 300)(victim, x, torch.zeros(3).long(), rng=SampleRng(0, (0, 1, 2)))
    assert ball.allows(x, x_adv).all() and not evidence["fooled"].any()
    slope = weight[1] - weight[0]
    best = ball.eps * (slope.abs().sum() if norm == "linf" else slope.norm())
    assert (((x_adv - x).flatten(1) @ slope) / best > 0.2).all()


@pytest.mark.parametrize("text", ["square(queries=0)", "square(p=0)", "square(p=1.5)", "square(loss=gama)"])
def test_settings_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="square|p="):
        attack_text.build(text, BALLS["linf"])
