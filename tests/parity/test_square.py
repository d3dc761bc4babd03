"""Square against the authors' code in pyautoattack: given the same proposals, it accepts the same ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.conftest import tiny_vit, toy_pictures
from vitattack.attacks.black_box.square import HALVINGS, QUERIES_PER_DRAW, Square
from vitattack.core.rng import SampleRng
from vitattack.models.victim import frozen
from vitattack.threats.lp import LpBall
from vitattack.threats.sparse import L1Ball

SquareAttack = pytest.importorskip("pyautoattack.square").SquareAttack
N = 8
BALLS = {"linf": LpBall("linf", 3 / 255), "l2": LpBall("l2", 0.5), "l1": L1Ball("l1", 12)}
THEIRS = {"linf": "Linf", "l2": "L2", "l1": "L1"}


class Recording(SquareAttack):
    """Their attack, recording the numbers in [0, 1] that make ours draw the same proposals, in order."""

    drawn: list[Tensor]

    def random_choice(self, shape: list[int]) -> Tensor:
        signs: Tensor = super().random_choice(shape)
        self.drawn.append(torch.where(signs > 0, 0.75, 0.25).double().flatten())
        return signs

    def random_int(self, low: int = 0, high: int = 1, shape: tuple[int, ...] = (1,)) -> Tensor:
        place: Tensor = super().random_int(low, high, list(shape))
        self.drawn.append((place + 0.5).double() / (high + 1))  # the last place is never drawn there, and is here
        return place

    def eta(self, s: int) -> Tensor:
        pattern: Tensor = super().eta(s)
        turned = float(pattern[0, -1]) < 0  # the upright one begins with a row of the hill
        self.drawn.append(torch.tensor([0.75 if turned else 0.25], dtype=torch.float64))
        return pattern


@pytest.mark.parametrize(("count", "l2"), [(120, 0.8), pytest.param(500, 0.5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("norm", BALLS)
def test_the_same_proposals_give_the_same_verdicts(norm: str, count: int, l2: float) -> None:
    """Run theirs image by image and ours on the batch, each image with the proposals recorded for it."""
    victim, x = tiny_vit(), toy_pictures(N, seed=4)
    ball = replace(BALLS[norm], eps=l2) if norm == "l2" else BALLS[norm]
    with frozen(victim), torch.no_grad():
        y = victim(x).argmax(1)
    numbers, queries, points = [], [], []
    state = torch.get_rng_state()
    for i in range(N):
        theirs = Recording(victim, norm=THEIRS[norm], eps=ball.eps, n_queries=count, resc_schedule=False)
        theirs.drawn = []
        theirs.init_hyperparam(x)
        torch.manual_seed(i)
        with frozen(victim):
            asked, point = theirs.attack_single_run(x[i : i + 1], y[i : i + 1])
        numbers.append(torch.cat(theirs.drawn))
        queries.append(int(asked))
        points.append(point)
    torch.set_rng_state(state)

    def recorded(rng: SampleRng, like: Tensor) -> Tensor:
        size = like[0].numel()
        if "queries" in rng.path:
            block, each = int(rng.path.rpartition(".")[2]), like.shape[2]
            begin = start_size + block * QUERIES_PER_DRAW * each
        else:
            begin = 0
        rows = [numbers[i][begin : begin + size] for i in rng.index]
        padded = [torch.cat([row, row.new_full((size - len(row),), 0.5)]) for row in rows]  # they had stopped by then
        return torch.stack(padded).view_as(like)

    start_size = 3 * 32 if norm == "linf" else 25 * 4
    attack = Square(ball, count, draw=recorded)
    x_adv, evidence = attack(victim, x, y, rng=SampleRng(0, tuple(range(N))))
    with frozen(victim), torch.no_grad():
        fooled = victim(torch.cat(points)).argmax(1) != y
    assert torch.equal(evidence["fooled"], fooled) and 0 < int(fooled.sum()) < N
    assert (evidence["forwards"]).tolist() == queries
    # theirs projects in l1, in float32, onto a ball that is a millionth smaller: 1.2e-5 of 12
    assert float((x_adv - torch.cat(points)).abs().max()) <= (5e-5 if norm == "l1" else 1e-5)


@pytest.mark.parametrize(("norm", "size"), [("linf", 32), ("linf", 9), ("l2", 32), ("l2", 224), ("l2", 4), ("l1", 32)])
def test_sides_shrink_as_theirs_do(norm: str, size: int) -> None:
    ours = Square(replace(BALLS[norm], eps=0.1), 10_000)
    theirs = SquareAttack(None, norm=THEIRS[norm], resc_schedule=False)
    for t in [0, 10_000, *HALVINGS, *(halving + 1 for halving in HALVINGS)]:
        side = round((theirs.p_selection(t) * size * size) ** 0.5)
        side = max(side, 1) if norm == "linf" else max(side, 3) + (max(side, 3) % 2 == 0)
        assert ours.side(t, size, size) == min(side, size)
        rescaled = Square(replace(BALLS[norm], eps=0.1), 2_500, rescale=True)
        if t % 4 == 0:
            assert rescaled.side(t // 4, size, size) == min(side, size)
