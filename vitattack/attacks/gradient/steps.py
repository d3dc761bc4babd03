"""Step rules, which turn gradients into the next iterate, and schedules of step sizes. Sizes are multiples of eps.

As in optax, a rule is a pair of pure functions: `init` creates the state, `step` takes and returns it. Tensors in a
state have one row per sample; the loop drops the rows of samples that leave.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from vitattack.core.errors import UsageError
from vitattack.core.registry import Registry
from vitattack.threats.base import per_row
from vitattack.threats.lp import LpBall, unit_l2

State = Mapping[str, Any]


class Schedule(Protocol):
    """Factor on the step size after `t` of `steps` steps."""

    def __call__(self, t: int, steps: int) -> float: ...


class StepRule(Protocol):
    """Update rule of an iterate."""

    def init(self, x: Tensor, steps: int) -> State: ...

    def step(
        self, x: Tensor, x_adv: Tensor, grad: Tensor, loss: Tensor, state: State, ball: LpBall
    ) -> tuple[Tensor, State]: ...

    def reach(self, steps: int) -> float:
        """Largest distance that all steps together can cover, in multiples of eps; 1 for adaptive rules."""
        return 1.0

    def widest(self, ball: LpBall, steps: int) -> LpBall:
        """The largest ball that iterates enter, and where the start lies; those outside the threat's own are no candidates."""
        return ball


SCHEDULES: Registry[type[Schedule]] = Registry("schedule", entry_point_group="vitattack.schedules")
RULES: Registry[type[StepRule]] = Registry("step rule", entry_point_group="vitattack.rules")


@SCHEDULES.register("constant")
@dataclass(frozen=True)
class Constant:
    """A constant step size."""

    def __call__(self, t: int, steps: int) -> float:
        return 1.0


@SCHEDULES.register("linear")
@dataclass(frozen=True)
class Linear:
    """Linear decay, 1 - t/steps, as in MIFPE."""

    def __call__(self, t: int, steps: int) -> float:
        return 1 - t / steps


@SCHEDULES.register("cosine")
@dataclass(frozen=True)
class Cosine:
    """Half a cosine from 1 down to `floor`, repeated `cycles` times."""

    floor: float = 0.0
    cycles: int = 1

    def __post_init__(self) -> None:
        if self.cycles < 1 or not 0 <= self.floor <= 1:
            raise UsageError("cosine takes at least 1 cycle and a floor from 0 to 1")

    def __call__(self, t: int, steps: int) -> float:
        length = steps / self.cycles
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * (t % length) / length))


@SCHEDULES.register("milestones")
@dataclass(frozen=True)
class Milestones:
    """Multiplication by `factor` at each of the given shares of the run; the defaults are GAMA's."""

    at: tuple[float, ...] = (0.6, 0.85)
    factor: float = 0.1

    def __post_init__(self) -> None:
        if not (0 < self.factor <= 1 and all(0 <= share <= 1 for share in self.at)):
            raise UsageError("milestones lie between 0 and 1 and multiply by a factor between 0 and 1")

    def __call__(self, t: int, steps: int) -> float:
        # rounded, since 0.85 * 20 may come out as 17.000000000000004 and step 17 must count as reached
        return self.factor ** sum(t >= round(share * steps, 9) for share in self.at)


@dataclass(frozen=True)
class _Ascent(StepRule):
    """A projected step, x_adv + size * eps * direction."""

    size: float = 0.25
    schedule: Schedule = field(default_factory=Constant)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.size) and self.size > 0):
            raise UsageError(f"a step of {self.size:g} eps goes nowhere: use a positive multiple of eps, such as 0.25")

    def init(self, x: Tensor, steps: int) -> State:
        return {"t": 0, "steps": steps}

    def step(
        self, x: Tensor, x_adv: Tensor, grad: Tensor, loss: Tensor, state: State, ball: LpBall
    ) -> tuple[Tensor, State]:
        moved = x_adv + self.length(state, ball) * self.direction(grad, ball)
        return ball.project(x, moved), {**state, "t": state["t"] + 1}

    def direction(self, grad: Tensor, ball: LpBall) -> Tensor:
        return ball.ascend(grad)

    def length(self, state: State, ball: LpBall) -> float:
        return self.size * ball.eps * self.schedule(state["t"], state["steps"])

    def reach(self, steps: int) -> float:
        return sum(self.size * self.schedule(t, steps) for t in range(steps))


@RULES.register("steepest")
@dataclass(frozen=True)
class Steepest(_Ascent):
    """Steepest ascent in the norm of the threat: the sign in linf, the normalised gradient in l2."""


@RULES.register("sign")
@dataclass(frozen=True)
class Sign(_Ascent):
    """The sign of the gradient, whatever the norm of the threat."""

    def direction(self, grad: Tensor, ball: LpBall) -> Tensor:
        return grad.sign()


@RULES.register("normalised")
@dataclass(frozen=True)
class Normalised(_Ascent):
    """The gradient scaled to unit l2 norm, whatever the norm of the threat."""

    def direction(self, grad: Tensor, ball: LpBall) -> Tensor:
        return unit_l2(grad)


@RULES.register("momentum")
@dataclass(frozen=True)
class Momentum(_Ascent):
    """Ascent along a running sum of l1-normalised gradients (Dong et al., CVPR 2018)."""

    decay: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decay < 0:
            raise UsageError("momentum needs a decay of at least 0, such as 1")

    def init(self, x: Tensor, steps: int) -> State:
        return {**super().init(x, steps), "sum": x.new_zeros(x.shape)}

    def step(
        self, x: Tensor, x_adv: Tensor, grad: Tensor, loss: Tensor, state: State, ball: LpBall
    ) -> tuple[Tensor, State]:
        mean = per_row(grad.flatten(1).abs().mean(1), grad).clamp_min(1e-30)
        total = self.decay * state["sum"] + grad / mean
        moved, state = super().step(x, x_adv, total, loss, state, ball)
        return moved, {**state, "sum": total}


@RULES.register("heavy_ball")
@dataclass(frozen=True)
class HeavyBall(_Ascent):
    """APGD's average of the new point and the last move (Croce & Hein 2020), with a fixed schedule."""

    weight: float = 0.75

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.weight <= 1:
            raise UsageError("heavy_ball needs a weight above 0 and at most 1, such as 0.75")

    def init(self, x: Tensor, steps: int) -> State:
        return {**super().init(x, steps), "move": x.new_zeros(x.shape)}

    def step(
        self, x: Tensor, x_adv: Tensor, grad: Tensor, loss: Tensor, state: State, ball: LpBall
    ) -> tuple[Tensor, State]:
        weight = self.weight if state["t"] else 1.0
        target, state = super().step(x, x_adv, grad, loss, state, ball)
        moved = ball.project(x, x_adv + weight * (target - x_adv) + (1 - weight) * state["move"])
        return moved, {**state, "move": moved - x_adv}


RULES.add("auto_step", "vitattack.attacks.gradient.apgd:AutoStep")
