"""Where a gradient attack begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from vitattack.errors import UsageError
from vitattack.registry import Registry
from vitattack.rng import SampleRng
from vitattack.threat import LpBall, per_row


class Start(Protocol):
    """A point inside ball and box. `passes`: forwards, and as many backwards, that finding it costs a sample."""

    @property
    def passes(self) -> int: ...

    def __call__(self, ball: LpBall, x: Tensor, *, victim: nn.Module, rng: SampleRng) -> Tensor: ...


STARTS: Registry[type[Start]] = Registry("start", entry_point_group="vitattack.starts")


@STARTS.register("clean")
@dataclass(frozen=True)
class Clean:
    """The image itself."""

    passes = 0

    def __call__(self, ball: LpBall, x: Tensor, *, victim: nn.Module, rng: SampleRng) -> Tensor:
        return x.clone()


@STARTS.register("uniform")
@dataclass(frozen=True)
class Uniform:
    """A uniform point of the ball."""

    passes = 0

    def __call__(self, ball: LpBall, x: Tensor, *, victim: nn.Module, rng: SampleRng) -> Tensor:
        return ball.random(x, rng)


@STARTS.register("corner")
@dataclass(frozen=True)
class Corner:
    """Random signs times the budget: a corner of the linf ball, a point of the l2 sphere."""

    passes = 0

    def __call__(self, ball: LpBall, x: Tensor, *, victim: nn.Module, rng: SampleRng) -> Tensor:
        return ball.project(x, x + ball.eps * ball.ascend(rng.uniform(x, -1.0, 1.0)))


@STARTS.register("edge")
@dataclass(frozen=True)
class Edge:
    """Uniform noise stretched until it touches the ball, as APGD and MIFPE start."""

    passes = 0

    def __call__(self, ball: LpBall, x: Tensor, *, victim: nn.Module, rng: SampleRng) -> Tensor:
        noise = rng.uniform(x, -1.0, 1.0)
        size = ball.size(noise.new_zeros(noise.shape), noise).clamp_min(1e-12).to(noise.dtype).to(noise.device)
        return ball.project(x, x + ball.eps * noise / per_row(size, x))


@STARTS.register("gauss")
@dataclass(frozen=True)
class Gauss:
    """A small normal step off the image, as TRADES trains."""

    passes = 0

    std: float = 0.001

    def __post_init__(self) -> None:
        if self.std <= 0:
            raise UsageError("gauss needs a positive deviation")

    def __call__(self, ball: LpBall, x: Tensor, *, victim: nn.Module, rng: SampleRng) -> Tensor:
        return ball.project(x, x + self.std * rng.normal(x))
