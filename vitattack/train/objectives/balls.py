"""Balls that only training uses: one that is smaller than its steps, and one that nothing is projected into."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

from torch import Tensor

from vitattack.attacks.base import Attack, mapped
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.threats.lp import LpBall

T = TypeVar("T")


@dataclass(frozen=True)
class Limited(LpBall):
    """A ball of radius `limit` whose steps are multiples of `eps`: the projection does the limiting."""

    limit: float = 0.0

    def random(self, x: Tensor, rng: SampleRng) -> Tensor:
        return LpBall(self.norm, self.limit).random(x, rng)

    def project(self, x: Tensor, x_adv: Tensor) -> Tensor:
        return LpBall(self.norm, self.limit).project(x, x_adv)


@dataclass(frozen=True)
class Unprojected(LpBall):
    """The box alone, with starts within `noise` times the budget (de Jorge et al., NeurIPS 2022)."""

    noise: float = 2.0

    def random(self, x: Tensor, rng: SampleRng) -> Tensor:
        return LpBall(self.norm, self.noise * self.eps).random(x, rng)

    def project(self, x: Tensor, x_adv: Tensor) -> Tensor:
        return LpBall("linf", 1.0).project(x, x_adv)  # a ball as wide as the box


def limited(ball: LpBall, eps: float) -> LpBall:
    """The ball of a warm-up: steps of the final budget cut off at `eps`; where nothing cuts, the step shrinks too."""
    if isinstance(ball, Unprojected):
        return replace(ball, eps=eps)
    return Limited(ball.norm, ball.eps, eps)


def in_every_ball(value: T, eps: float) -> T:
    """An attack with every ball in it limited to `eps`."""
    changed: T = _mapped(value, lambda v: limited(v, eps) if isinstance(v, LpBall) else None)
    return changed


def to_the_end(attack: Attack) -> Attack:
    """The attack as training runs it: all steps for everybody, and the last iterate."""
    if attack.traits.learns:
        raise UsageError("inner: an attack that learns from other images first, such as aas, cannot train: use pgd")
    return mapped(lambda part: part.to_the_end(), attack)


def _mapped(value: Any, change: Any) -> Any:
    """A value with every part that `change` answers for replaced, from the outside in."""
    changed = change(value) if is_dataclass(value) else None
    if changed is not None:
        value = changed
        if isinstance(value, LpBall):
            return value
    if isinstance(value, tuple):
        mapped_parts = [_mapped(part, change) for part in value]
        return type(value)(*mapped_parts) if hasattr(value, "_fields") else tuple(mapped_parts)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    parts = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
    mapped = {name: _mapped(part, change) for name, part in parts.items()}
    moved = {name: part for name, part in mapped.items() if part is not parts[name]}
    return replace(value, **moved) if moved else value
