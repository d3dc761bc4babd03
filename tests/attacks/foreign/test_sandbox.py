"""The fence around foreign code: randomness, output, failures and the budget."""

from __future__ import annotations

import random
import sys
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor

from vitattack.attacks import attack_text
from vitattack.attacks.autoattack.flags import Flag, doubts_of
from vitattack.attacks.foreign.sandbox import judge_candidates, quiet, sandboxed
from vitattack.core.errors import UsageError, VitattackError
from vitattack.core.rng import SampleRng, seed_of, seeded
from vitattack.models.victim import Victim
from vitattack.threats.lp import LpBall

RNG = SampleRng(3, (1, 2, 5))
BALL = LpBall("linf", 8 / 255)


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(1))


def test_the_global_generators_are_ours_inside_and_untouched_outside() -> None:
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    expected = draws()
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    with seeded(RNG):
        one = draws()
    with pytest.raises(ZeroDivisionError), seeded(RNG):
        two = draws()
        _ = 1 / 0
    with seeded(RNG.child("again")):
        other = draws()
    assert draws() == expected
    assert one == two
    assert all(a != b for a, b in zip(one, other, strict=True))


def test_a_seed_depends_on_run_path_and_rows() -> None:
    others = [SampleRng(4, RNG.index), SampleRng(3, (1, 2)), SampleRng(3, (1, 25)), RNG.child("restart", 1)]
    assert len({seed_of(rng) for rng in [RNG, *others]}) == 5


def test_warnings_are_collected_and_prints_swallowed(capsys: pytest.CaptureFixture[str]) -> None:
    with quiet() as said:
        sys.stdout.write("chatter")
        warnings.warn("there are zero gradients", stacklevel=1)
    assert said == ["there are zero gradients"]
    assert capsys.readouterr().out == ""


def test_failures_are_one_line_and_leave_the_victim_as_found(toy: Victim, toy_images: tuple[Tensor, Tensor]) -> None:
    toy.train()
    x, _ = toy_images
    rng = SampleRng(0, tuple(range(12)))
    with (
        pytest.raises(VitattackError, match="^theirs failed: ValueError first$"),
        sandboxed("theirs", toy, x, rng) as call,
    ):
        assert not call.model.training and not toy.training
        raise ValueError("first\nsecond")
    with pytest.raises(RuntimeError, match="out of memory"), sandboxed("theirs", toy, x, rng):
        raise RuntimeError("CUDA out of memory")  # so that the run can halve the batch
    assert toy.training and not toy._forward_hooks
    assert all(p.requires_grad for p in toy.parameters())


def test_candidates_outside_the_budget_are_dropped(toy: Victim, toy_images: tuple[Tensor, Tensor]) -> None:
    x, y = toy_images
    found = x.clone()
    found[0] = 1 - x[0]  # far outside, and surely something else
    found[1] = float("nan")
    with torch.no_grad():
        y[2] = (y[2] + 1) % 10  # wrong where it stands
    seen = judge_candidates(toy, BALL, x, y, found)
    assert torch.equal(seen.x_adv, x)
    assert seen.outside.nonzero().flatten().tolist() == [0, 1]
    assert seen.fooled.nonzero().flatten().tolist() == [2]


@pytest.mark.parametrize("text", ["autoattack_ref(steps=2, stages=('apgd-ce',))", "torchattacks('PGD', steps=2)"])
def test_double_precision_and_views_are_no_obstacle(text: str, toy: Victim, toy_images: tuple[Tensor, Tensor]) -> None:
    x, y = toy_images
    rng = SampleRng(0, tuple(range(12)))
    attack = attack_text.build(text, LpBall("linf", 16 / 255))
    single = attack(toy, x, y, rng=rng)
    through = attack_text.build(f"fp64+{text}", LpBall("linf", 16 / 255))(toy, x, y, rng=rng)
    double = attack(toy.double(), x.double(), y, rng=rng)
    assert double.x_adv.dtype == torch.float64
    assert BALL.size(x, through.x_adv).max() <= 16 / 255 + 1e-6
    assert int(through.evidence["forwards"].sum()) > int(single.evidence["forwards"].sum())  # verdicts have their price
    agree = (single.evidence["fooled"] == double.evidence["fooled"]).float().mean()
    assert float(agree) > 0.9


@pytest.mark.parametrize("inner", ["torchattacks('PGD')", "autoattack_ref"])
@pytest.mark.parametrize("wrapper", ["eot", "targets"])
def test_wrappers_that_change_the_loss_are_refused(wrapper: str, inner: str) -> None:
    with pytest.raises(UsageError, match="(a loss|losses) of (its|their) own"):
        attack_text.build(f"{wrapper}({inner})", BALL)


def test_flags_become_doubts_once() -> None:
    found = list(doubts_of([0] * 990 + [Flag.RANDOM | Flag.DYNAMIC] * 8))
    assert len(found) == 2 and "random" in found[0] and "inside a forward" in found[1]
    assert list(doubts_of([])) == []
