"""Gradient fidelity: whether a model does what its gradient promises.

Near an image, the gradient predicts how the margin changes along any short step. A model whose outputs change otherwise
(rounded inputs, spikes, sparse or shattered features, noise) has a gradient that leads attacks astray, even if it is not zero.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitattack.attacks.losses.base import logit_margin
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.models.gradients.agreement import agreement
from vitattack.threats.base import per_row
from vitattack.threats.lp import LpBall

LENGTH = 1 / 16  # of the steps, in budgets
DIRECTIONS = 8
FORWARDS = 1 + DIRECTIONS  # per image, beside one backward
# Budget that steps are a share of, if the given one is smaller: rounding of float32 hides shorter ones.
LEAST = {"linf": 1 / 255, "l2": 0.05, "l1": 2.0}
TRUSTED = 0.5  # if fewer than half the images reach it, gradients are not trusted


def gradient_fidelity(model: Attackable, ball: LpBall, x: Tensor, y: Tensor, rng: SampleRng) -> Tensor:
    """(B,) median agreement of each image along short random steps; zero without a gradient.

    Steps start half a budget away from the images, where attacks look.
    """
    point = _moved(ball, x, rng.child("place"), 0.5).clamp(0, 1).requires_grad_()
    with torch.enable_grad():
        margin = logit_margin(model(point), y)
        grad = torch.autograd.grad(margin.sum(), point, allow_unused=True)[0] if margin.requires_grad else None
    if grad is None:
        return torch.zeros_like(margin, requires_grad=False)
    point, margin, found = point.detach(), margin.detach(), []
    for number in range(DIRECTIONS):
        moved = _moved(ball, point, rng.child("direction", number), LENGTH)
        with torch.no_grad():
            actual = logit_margin(model(moved), y) - margin
        found.append(agreement((grad * (moved - point)).flatten(1).sum(1), actual))
    return torch.stack(found).median(0).values


def _moved(ball: LpBall, x: Tensor, rng: SampleRng, length: float) -> Tensor:
    """The images after a random step of a share of the budget, which may leave the box."""
    return x + random_step(ball, x, rng) * (length * max(ball.eps, LEAST[ball.norm]))


def random_step(ball: LpBall, x: Tensor, rng: SampleRng) -> Tensor:
    """A random step of size one in the norm, over all pixels: in l1 too, where steepest ascent would move a single one."""
    noise = rng.normal(x)
    if ball.norm == "l1":
        return noise / per_row(noise.flatten(1).abs().sum(1).clamp_min(1e-12), x)
    return ball.ascend(noise)
