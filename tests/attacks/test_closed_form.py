"""On a linear victim the best perturbation is known: attacks must reach it, and never leave ball or box."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import batch, linear_victim
from vitattack.attacks import attack_text
from vitattack.core.rng import SampleRng
from vitattack.threats.lp import LpBall

BALLS = {"linf": LpBall("linf", 8 / 255), "l2": LpBall("l2", 0.25)}
# Each attack with its defaults, run to the end; losses by way of pgd.
FULL = {
    "fgsm": "fgsm(stop=never)",
    "pgd": "pgd(stop=never)",
    "pgd-bhojanapalli2021": "pgd(preset=bhojanapalli2021, stop=never)",
    "pgd-trades": "pgd(preset=trades, stop=never)",
    "mim": "mim(stop=never)",
    "cw": "cw(stop=never)",
    "dlr": "dlr(stop=never)",
    "gama": "gama(stop=never)",
    "gama-clean": "gama(anchor=clean, stop=never)",
    "gama-logit": "gama(space=logit, stop=never)",
    "mifpe": "mifpe(stop=never)",
    "mifpe-10": "mifpe(T=10, stop=never)",
    "pma": "pma(stop=never)",
    "md": "md(stop=never)",
    "apgd": "apgd(stop=never)",
    "apgd-margin": "apgd(loss=margin, stop=never)",
    "apgd_dlr": "apgd_dlr(stop=never)",
    "apgd_t": "apgd_t(k=1, stop=never)",
    "apgd-margin_targeted": "apgd(loss=margin_targeted, stop=never)",
    "targets": "targets(pgd(stop=never), which=second)",
    "eot": "eot(pgd(stop=never), n=2)",
    "odi": "pgd(start=odi, step=0.25, stop=never)",
    "restarts": "restarts(2, pgd(stop=never))",
    "worst": "worst(pgd(stop=never), gama(stop=never))",
    "pm": "pgd(loss=pm, stop=never)",
    "ce_targeted": "pgd(loss=ce_targeted, stop=never)",
    "margin_targeted": "pgd(loss=margin_targeted(rank=1), stop=never)",
    "dlr_targeted": "pgd(loss=dlr_targeted, stop=never)",
    "cosine": "pgd(rule=heavy_ball(size=2, schedule=cosine), stop=never)",
    "corner": "pgd(start=corner, stop=never)",
    "gauss": "pgd(start=gauss, stop=never)",
    "square": "square",
}


def gain(text: str, norm: str, n: int = 4) -> tuple[torch.Tensor, float]:
    """How much of the best possible margin gain an attack reaches, per sample."""
    victim, slope = linear_victim()
    x, y = batch(n)
    ball = BALLS[norm]
    x_adv = attack_text.build(text, ball)(victim, x, y, rng=SampleRng(0, tuple(range(n)))).x_adv
    assert ball.allows(x, x_adv).all()
    best = ball.eps * float(slope.abs().sum() if norm == "linf" else slope.norm())
    return ((x_adv - x).flatten(1) @ slope) / best, best


# The TRADES preset is an linf one: its twenty steps of 0.097 eps do not cross the l2 ball from edge to edge. In l2 a
# random search keeps what its patterns happen to hold of the optimum: see test_square.py.
CASES = [(name, norm) for name in FULL for norm in BALLS if norm == "linf" or name not in ("pgd-trades", "square")]


@pytest.mark.parametrize(("name", "norm"), CASES)
def test_iterated_attacks_reach_the_optimum(name: str, norm: str) -> None:
    reached, best = gain(FULL[name], norm)
    assert best < 3  # the true class still leads at the optimum: nothing here is decided by a changed argmax
    assert (reached >= 0.97).all(), reached
    assert (reached <= 1 + 1e-6).all(), reached


@pytest.mark.parametrize("norm", BALLS)
def test_kl_goes_to_one_end_of_the_line_or_the_other(norm: str) -> None:
    """The divergence grows whichever class gains, so a linear victim has two optima."""
    reached, _ = gain("pgd(loss=kl_to, start=corner, stop=never)", norm, n=16)
    assert (reached.abs() >= 0.97).all() and bool((reached > 0).any()), reached


@pytest.mark.parametrize(
    ("text", "expectation"),
    [
        ("fgsm_rs(stop=never)", 55 / 64),  # E[min(u + 1.25, 1)] for u uniform in [-1, 1]
        ("pgd(preset=light2023, stop=never)", 15 / 16),  # its steps add up to 1.5 eps, whatever their number
    ],
)
def test_steps_too_short_to_cross_from_a_uniform_start_reach_their_expectation(text: str, expectation: float) -> None:
    reached, _ = gain(text, "linf", n=64)
    assert float(reached.mean()) == pytest.approx(expectation, abs=0.01)


@pytest.mark.parametrize("name", ["pgd", "mim", "gama", "mifpe", "pma", "cw", "apgd"])
def test_an_active_box_is_solved_per_pixel(name: str) -> None:
    victim, slope = linear_victim()
    x, y = batch(3)
    edge = torch.rand(x.shape, generator=torch.Generator().manual_seed(5), dtype=x.dtype)
    x = torch.where(edge < 0.3, 0.01, torch.where(edge > 0.7, 0.995, x))
    with torch.no_grad():  # keep the true class ahead by the same margin as in the middle of the box
        logits = victim(x)
        victim.model.bias[1] += float((logits[:, 0] - logits[:, 1]).min()) - 3.0
    ball = BALLS["linf"]
    x_adv = attack_text.build(FULL[name], ball)(victim, x, y, rng=SampleRng(0, (0, 1, 2))).x_adv
    assert ball.allows(x, x_adv).all()
    up = (x + ball.eps * slope.sign().view(1, 3, 8, 8)).clamp(0, 1)
    best = (up - x).flatten(1) @ slope
    reached = ((x_adv - x).flatten(1) @ slope) / best
    assert (reached >= 0.97).all() and (reached <= 1 + 1e-9).all(), reached


def test_the_first_success_is_kept_and_its_step_is_right() -> None:
    """From the image itself, steps of eps/4 gain a quarter of the optimum each: the success step can be computed."""
    victim, slope = linear_victim(gap=0.0)
    ball = BALLS["linf"]
    per_step = 0.25 * ball.eps * float(slope.abs().sum())
    leads = torch.tensor([0.3, 0.9, 1.4, 2.2, 3.7, 4.1], dtype=torch.float64) * per_step
    y = torch.zeros(6, dtype=torch.long)
    x = 0.5 - (leads[:, None] * slope / slope.square().sum()).view(6, 3, 8, 8)  # on the line across the boundary
    lead = (victim(x)[:, 0] - victim(x)[:, 1]).detach()
    assert torch.allclose(lead, leads)
    expected = [int(gap / per_step) + 1 if gap < 4 * per_step else -1 for gap in lead.tolist()]
    crafted = attack_text.build("pgd(start=clean, steps=4)", ball)(victim, x, y, rng=SampleRng(0, tuple(range(6))))
    assert crafted.evidence["first_fooled"].tolist() == expected
    assert expected == [1, 1, 2, 3, 4, -1]
    fooled = victim(crafted.x_adv).argmax(1) != y
    assert fooled.tolist() == [step > 0 for step in expected]
