"""Cross-entropy after PGD of so many steps, with the step size of the light recipe."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from vitattack.attacks.gradient.loop import Gradient
from vitattack.attacks.gradient.starts import Uniform
from vitattack.attacks.gradient.steps import Steepest
from vitattack.attacks.losses.plain import CrossEntropy
from vitattack.core.rng import SampleRng
from vitattack.models.victim import Victim
from vitattack.threats.lp import LpBall

REACH = 1.5  # multiples of eps that all steps together cover


def losses(victim: Victim, x: Tensor, y: Tensor) -> Tensor:
    """(B,) cross-entropies in double precision."""
    with torch.no_grad():
        return cross_entropy(victim(x).double(), y, reduction="none")


def losses_after(victim: Victim, ball: LpBall, x: Tensor, y: Tensor, steps: int, rng: SampleRng) -> Tensor:
    """(B,) cross-entropies at the last iterate of PGD; equal `rng`, equal starts for any number of steps."""
    return losses(victim, perturbed(victim, ball, x, y, steps, rng), y)


def perturbed(victim: Victim, ball: LpBall, x: Tensor, y: Tensor, steps: int, rng: SampleRng) -> Tensor:
    """The last iterate of PGD."""
    attack = Gradient(ball, steps, Steepest(REACH / steps), CrossEntropy(), Uniform(), "never")
    return attack(victim, x, y, rng=rng).x_adv


def losses_along(
    victim: Victim, ball: LpBall, x: Tensor, y: Tensor, steps: int, step: float, rng: SampleRng
) -> list[Tensor]:
    """(B,) cross-entropies at the start and after each step of `step` eps."""
    x_adv = ball.random(x, rng.child("start"))
    found = []
    for _ in range(steps):
        with torch.enable_grad():
            x_adv = x_adv.detach().requires_grad_()
            each = cross_entropy(victim(x_adv).double(), y, reduction="none")
            (grad,) = torch.autograd.grad(each.sum(), x_adv)
        found.append(each.detach())
        x_adv = ball.project(x, x_adv.detach() + step * ball.eps * ball.ascend(grad))
    return [*found, losses(victim, x_adv, y)]
