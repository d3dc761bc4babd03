"""Learning-rate schedules, such as `cosine(warmup=0.1)`: pure functions of the step, so that resuming needs no state.

The loop sets `group["lr"] = group["peak"] * schedule(step, total)`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from vitattack.core.errors import UsageError


class RateSchedule(Protocol):
    """Share of the peak learning rate at optimiser step `step` of `total`."""

    def __call__(self, step: int, total: int) -> float: ...


def _check_shares(**shares: float) -> None:
    for name, value in shares.items():
        if not 0 <= value <= 1:
            raise UsageError(f"{name} {value:g} is a share of the run or the peak: use a number from 0 to 1")


def _rising(at: float, warmup: float, start: float) -> float | None:
    """The linear warm-up, None once it is over."""
    return start + (1 - start) * at / warmup if at < warmup else None


@dataclass(frozen=True)
class ConstantRate:
    """Linear warm-up from `start` over a share of the run, then the peak."""

    warmup: float = 0.0
    start: float = 0.0

    def __post_init__(self) -> None:
        _check_shares(warmup=self.warmup, start=self.start)

    def __call__(self, step: int, total: int) -> float:
        rising = _rising(step / total, self.warmup, self.start)
        return 1.0 if rising is None else rising


@dataclass(frozen=True)
class CosineRate:
    """Linear warm-up from `start`, then half a cosine down to `floor`, held for the last share `cooldown`."""

    warmup: float = 0.0
    start: float = 0.0
    floor: float = 0.0
    cooldown: float = 0.0

    def __post_init__(self) -> None:
        _check_shares(warmup=self.warmup, start=self.start, floor=self.floor, cooldown=self.cooldown)
        if self.warmup + self.cooldown > 1:
            raise UsageError("warmup and cooldown add up to more than the run: lower one of them")

    def __call__(self, step: int, total: int) -> float:
        at = step / total
        rising = _rising(at, self.warmup, self.start)
        if rising is not None:
            return rising
        falling = 1 - self.warmup - self.cooldown
        done = min(1.0, (at - self.warmup) / falling) if falling > 0 else 1.0
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * done))


@dataclass(frozen=True)
class OneCycleRate:
    """Half a cosine up from 1 / div, half a cosine down to 1 / div / final_div, as torch's OneCycleLR (Smith and Topin, 2019)."""

    warmup: float = 0.3
    div: float = 25.0
    final_div: float = 1e4

    def __post_init__(self) -> None:
        _check_shares(warmup=self.warmup)
        if self.div < 1 or self.final_div < 1:
            raise UsageError("div and final_div divide the learning rate: use numbers of 1 or more")

    def __call__(self, step: int, total: int) -> float:
        top, last = self.warmup * total - 1, total - 1  # as torch does, which peaks one step early
        low, end = 1 / self.div, 1 / self.div / self.final_div
        if step <= top:
            return low + (1 - low) * 0.5 * (1 - math.cos(math.pi * step / top)) if top > 0 else 1.0
        done = min(1.0, (step - top) / (last - top)) if last > top else 1.0
        return end + (1 - end) * 0.5 * (1 + math.cos(math.pi * done))


@dataclass(frozen=True)
class StepDecay:
    """Step decay: the peak times `factor` for each milestone passed; milestones are shares of the run."""

    at: tuple[float, ...] = (0.5, 0.75)
    factor: float = 0.1

    def __post_init__(self) -> None:
        _check_shares(**{f"milestone {number}": value for number, value in enumerate(self.at)})
        if list(self.at) != sorted(self.at):
            raise UsageError(f"milestones {self.at} are out of order: sort them")

    def __call__(self, step: int, total: int) -> float:
        # rounded, so that 35 of 40 epochs is a whole step
        return float(self.factor ** sum(step >= round(share * total) for share in self.at))
