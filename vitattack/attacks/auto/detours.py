"""Detours: views with other gradients, tried where a model's own cannot be trusted; the one that gets furthest is taken."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vitattack.attacks.auto.numbering import AVERAGED, DETOUR
from vitattack.attacks.auto.short import short_ascent
from vitattack.attacks.gradient.fidelity import random_step
from vitattack.attacks.price import PassesPerImage
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.models.gradients.culprits import culprits, front
from vitattack.models.gradients.straight_through import Detour, StraightThrough
from vitattack.models.gradients.substitutes import KINDS
from vitattack.models.lost_gradients import find_lost_gradient
from vitattack.models.victim import Victim, frozen
from vitattack.models.views import Averaged
from vitattack.threats.lp import LpBall

STEPS = 10  # of a trial
ANSWERS = 4  # of a random model, averaged in each step
REPLACED = "gradients that lead nowhere were replaced"


class Chosen(NamedTuple):
    """A view, what it changes, as a doubt, and the name of the stage that runs through it."""

    view: Attackable
    doubt: str
    stage: str = DETOUR


def views(victim: Victim, ball: LpBall, x: Tensor, rng: SampleRng) -> dict[str, Attackable]:
    """Views that might have better gradients on these images, by what they change."""
    detours: list[Detour] = []
    every = StraightThrough(victim, Detour(frozenset(KINDS)))
    with frozen(victim), torch.enable_grad():
        every(x[:1].clone().requires_grad_())
    if every.seen:
        detours.append(Detour(every.seen))
    with frozen(victim):
        moved = x + random_step(ball, x, rng.child("moved")) * (ball.eps / 4)
        if (at := front(victim, x)) is not None:
            detours.append(Detour(front=at))
        if classes := culprits(victim, x, moved):
            detours.append(Detour(modules=classes))
    return {f"straight-through around {detour}": StraightThrough(victim, detour) for detour in detours}


def averaged(victim: Victim) -> Chosen:
    """The mean of a random model's gradients over a few answers."""
    doubt = f"the model is random: gradients were averaged over {ANSWERS} answers"
    return Chosen(Averaged(victim, ANSWERS), doubt, AVERAGED)


def choose(victim: Victim, ball: LpBall, x: Tensor, y: Tensor, rng: SampleRng) -> tuple[Chosen | None, PassesPerImage]:
    """The view through which a short attack gets furthest on the plain model, if further than without one.

    Returns the passes of all trials together, too.
    """
    trial = short_ascent(ball, STEPS)
    best, chosen, spent = (-1, 0.0), None, PassesPerImage()
    for change, view in {"": victim, **views(victim, ball, x, rng)}.items():
        lost = find_lost_gradient(view, x[:1])
        if lost is not None and lost.cause != "zero":
            continue
        evidence = trial(view, x, y, rng=rng.child("trial")).evidence
        spent = spent.plus(PassesPerImage(*(int(evidence[kind].sum()) for kind in ("forwards", "backwards"))))
        reached = int(evidence["fooled"].sum()), float(evidence["margin"].mean())
        if reached > best:
            best, chosen = reached, Chosen(view, f"{REPLACED}: {change}") if change else None
    return chosen, spent
