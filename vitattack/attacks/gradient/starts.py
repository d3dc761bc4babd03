"""Starting points of gradient attacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from vitattack.attacks.losses.base import mean_answer
from vitattack.core.errors import UsageError
from vitattack.core.registry import Registry
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.threats.base import per_row
from vitattack.threats.lp import LpBall


class Start(Protocol):
    """A starting point inside ball and box; `passes` is the forwards, and as many backwards, spent on finding it."""

    @property
    def passes(self) -> int: ...

    def __call__(self, ball: LpBall, x: Tensor, *, victim: Attackable, rng: SampleRng) -> Tensor: ...


STARTS: Registry[type[Start]] = Registry("start", entry_point_group="vitattack.starts")


@STARTS.register("clean")
@dataclass(frozen=True)
class Clean:
    """The clean image."""

    passes = 0

    def __call__(self, ball: LpBall, x: Tensor, *, victim: Attackable, rng: SampleRng) -> Tensor:
        return x.clone()


@STARTS.register("uniform")
@dataclass(frozen=True)
class Uniform:
    """A uniform point of the ball."""

    passes = 0

    def __call__(self, ball: LpBall, x: Tensor, *, victim: Attackable, rng: SampleRng) -> Tensor:
        return ball.random(x, rng)


@STARTS.register("corner")
@dataclass(frozen=True)
class Corner:
    """Random signs times eps: a corner of the linf ball, a point of the l2 sphere."""

    passes = 0

    def __call__(self, ball: LpBall, x: Tensor, *, victim: Attackable, rng: SampleRng) -> Tensor:
        return ball.project(x, x + ball.eps * ball.ascend(rng.uniform(x, -1.0, 1.0)))


@STARTS.register("edge")
@dataclass(frozen=True)
class Edge:
    """Noise scaled to the boundary of the ball, as in APGD and MIFPE: uniform in linf, normal in l2.

    In l1 normal noise is projected, which keeps its largest entries alone.
    """

    passes = 0

    def __call__(self, ball: LpBall, x: Tensor, *, victim: Attackable, rng: SampleRng) -> Tensor:
        noise = rng.uniform(x, -1.0, 1.0) if ball.norm == "linf" else rng.normal(x)
        if ball.norm == "l1":
            return ball.project(x, x + noise)
        size = ball.size(noise.new_zeros(noise.shape), noise).clamp_min(1e-12).to(noise.dtype).to(noise.device)
        return ball.project(x, x + ball.eps * noise / per_row(size, x))


@STARTS.register("gauss")
@dataclass(frozen=True)
class Gauss:
    """A small normal step from the image, as in TRADES training."""

    passes = 0

    std: float = 0.001

    def __post_init__(self) -> None:
        if self.std <= 0:
            raise UsageError("gauss needs a positive standard deviation, such as std=0.001")

    def __call__(self, ball: LpBall, x: Tensor, *, victim: Attackable, rng: SampleRng) -> Tensor:
        return ball.project(x, x + self.std * rng.normal(x))


@STARTS.register("odi")
@dataclass(frozen=True)
class OutputDiversified:
    """A uniform point moved a few steps along a random direction in output space (Tashiro et al., NeurIPS 2020)."""

    steps: int = 2
    size: float = 1.0

    def __post_init__(self) -> None:
        if self.steps < 1 or self.size <= 0:
            raise UsageError("odi takes at least 1 step of a positive multiple of eps")

    @property
    def passes(self) -> int:
        return self.steps

    def __call__(self, ball: LpBall, x: Tensor, *, victim: Attackable, rng: SampleRng) -> Tensor:
        x_adv = ball.random(x, rng.child("uniform"))
        for _ in range(self.steps):
            x_adv = x_adv.detach().requires_grad_()
            logits = mean_answer(victim(x_adv))
            direction = rng.child("direction").uniform(logits.detach(), -1.0, 1.0)
            (grad,) = torch.autograd.grad((direction * logits).sum(), x_adv)
            x_adv = ball.project(x, x_adv.detach() + self.size * ball.eps * ball.ascend(grad.nan_to_num(0.0, 0.0, 0.0)))
        return x_adv
