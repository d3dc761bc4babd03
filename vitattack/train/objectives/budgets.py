"""Threat balls that only training uses: one smaller than its steps, and one without projection."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

from torch import Tensor

from vitattack.core.rng import SampleRng
from vitattack.threats.lp import LpBall

T = TypeVar("T")


@dataclass(frozen=True)
class Limited(LpBall):
    """A ball of radius `limit` whose steps are multiples of `eps`, for the warm-up of a budget."""

    limit: float = 0.0

    def random(self, x: Tensor, rng: SampleRng) -> Tensor:
        return LpBall(self.norm, self.limit).random(x, rng)

    def project(self, x: Tensor, x_adv: Tensor) -> Tensor:
        return LpBall(self.norm, self.limit).project(x, x_adv)


@dataclass(frozen=True)
class Unprojected(LpBall):
    """The pixel range alone, with starts within `noise` times the budget (de Jorge et al., NeurIPS 2022)."""

    noise: float = 2.0

    def random(self, x: Tensor, rng: SampleRng) -> Tensor:
        return LpBall(self.norm, self.noise * self.eps).random(x, rng)

    def project(self, x: Tensor, x_adv: Tensor) -> Tensor:
        return LpBall("linf", 1.0).project(x, x_adv)  # as wide as the pixel range


def limited(ball: LpBall, eps: float) -> LpBall:
    """The ball shrunk to `eps` with its steps as long as before; an unprojected one shrinks its steps too."""
    if isinstance(ball, Unprojected):
        return replace(ball, eps=eps)
    return Limited(ball.norm, ball.eps, eps)


def with_budget(attack: T, eps: float) -> T:
    """The attack with every ball inside it limited to `eps`."""
    changed: T = mapped(attack, lambda v: limited(v, eps) if isinstance(v, LpBall) else None)
    return changed


def mapped(value: Any, change: Any) -> Any:
    """A value with every part that `change` answers for replaced, from the outside in."""
    changed = change(value) if is_dataclass(value) else None
    if changed is not None:
        value = changed
        if isinstance(value, LpBall):
            return value
    if isinstance(value, tuple):
        mapped_parts = [mapped(part, change) for part in value]
        return type(value)(*mapped_parts) if hasattr(value, "_fields") else tuple(mapped_parts)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    parts = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
    mapped_fields = {name: mapped(part, change) for name, part in parts.items()}
    moved = {name: part for name, part in mapped_fields.items() if part is not parts[name]}
    return replace(value, **moved) if moved else value
