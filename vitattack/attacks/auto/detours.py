"""Detours: views with other gradients, tried where a model's own cannot be trusted; the one that gets furthest is taken."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitattack.attacks.gradient.starts import Corner
from vitattack.attacks.gradient.steps import Cosine, HeavyBall
from vitattack.attacks.gradient.variants import pgd
from vitattack.attacks.losses.plain import Margin
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.models.gradients.culprits import culprits, front
from vitattack.models.gradients.straight_through import Detour, StraightThrough
from vitattack.models.gradients.substitutes import KINDS
from vitattack.models.victim import Victim, frozen
from vitattack.threats.lp import LpBall

STEPS = 10  # of a trial


@dataclass(frozen=True)
class Chosen:
    """A view, what it changes, and the passes that the choice took on each image it was tried on."""

    view: Attackable
    name: str
    forwards: int
    backwards: int


def views(victim: Victim, ball: LpBall, x: Tensor, rng: SampleRng) -> dict[str, Attackable]:
    """Views that might have better gradients on these images, by what they change."""
    detours: list[Detour] = []
    every = StraightThrough(victim, Detour(frozenset(KINDS)))
    with frozen(victim), torch.enable_grad():
        every(x[:1].clone().requires_grad_())
    if every.seen:
        detours.append(Detour(every.seen))
    with frozen(victim):
        moved = x + ball.ascend(rng.child("moved").normal(x)) * (ball.eps / 4)
        if (at := front(victim, x)) is not None:
            detours.append(Detour(front=at))
        if classes := culprits(victim, x, moved):
            detours.append(Detour(modules=classes))
    return {f"straight-through around {detour}": StraightThrough(victim, detour) for detour in detours}


def choose(victim: Victim, ball: LpBall, x: Tensor, y: Tensor, rng: SampleRng) -> Chosen | None:
    """The view through which a short attack gets furthest on the plain model, if further than without one."""
    trial = pgd(ball, steps=STEPS, loss=Margin(), start=Corner(), rule=HeavyBall(2.0, Cosine()))
    forwards = backwards = 0
    best, chosen = None, None
    for name, view in {"": victim, **views(victim, ball, x, rng)}.items():
        evidence = trial(view, x, y, rng=rng.child("trial")).evidence
        forwards, backwards = (
            spent + int(evidence[kind].sum()) for spent, kind in ((forwards, "forwards"), (backwards, "backwards"))
        )
        reached = int(evidence["fooled"].sum()), float(evidence["margin"].mean())
        if best is None or reached > best:
            best, chosen = reached, (name, view)
    assert chosen is not None
    return Chosen(chosen[1], chosen[0], forwards, backwards) if chosen[0] else None
