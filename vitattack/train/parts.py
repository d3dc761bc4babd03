"""The parts of a recipe made from their texts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from vitattack.attacks import attack_text
from vitattack.core.errors import UsageError
from vitattack.threats.base import parse_threat
from vitattack.threats.lp import LpBall
from vitattack.train.data.augment import AUGMENTS, Augment
from vitattack.train.hooks.hooks import HOOKS, Hook
from vitattack.train.loop.optim import OPTIMISERS, RATES, OptimiserMaker, Rate
from vitattack.train.objectives.objectives import OBJECTIVES, Objective
from vitattack.train.recipe import Recipe

T = TypeVar("T")

attack_text.KINDS.update(
    {Objective: OBJECTIVES, Hook: HOOKS, Augment: AUGMENTS, OptimiserMaker: OPTIMISERS, Rate: RATES},
)


@dataclass
class Parts:
    """Objects of one run; hooks have state and are never shared between runs."""

    ball: LpBall
    objective: Objective
    hooks: list[Hook]
    augment: list[Augment]
    optimiser: OptimiserMaker
    rate: Rate


def parts(recipe: Recipe) -> Parts:
    """Every text of a recipe, checked and built; a mistake in one is named with its key."""
    ball = lp_ball(recipe.threat)
    return Parts(
        ball=ball,
        objective=_part("objective", recipe.objective, Objective, ball)[0],
        hooks=[_part("hooks", text, Hook, ball)[0] for text in recipe.hooks],
        augment=[_part("augment", text, Augment, ball)[0] for text in recipe.augment],
        optimiser=_part("optimiser", recipe.optimiser, OptimiserMaker, ball)[0],
        rate=_part("rate", recipe.rate, Rate, ball)[0],
    )


def canonical(recipe: Recipe) -> Recipe:
    """The recipe with every text in its one form: equal for recipes that do the same."""
    ball = lp_ball(recipe.threat)
    return replace(
        recipe,
        threat=str(ball),
        objective=_part("objective", recipe.objective, Objective, ball)[1],
        hooks=tuple(_part("hooks", text, Hook, ball)[1] for text in recipe.hooks),
        augment=tuple(_part("augment", text, Augment, ball)[1] for text in recipe.augment),
        optimiser=_part("optimiser", recipe.optimiser, OptimiserMaker, ball)[1],
        rate=_part("rate", recipe.rate, Rate, ball)[1],
    )


def lp_ball(text: str) -> LpBall:
    """The budget of a recipe."""
    threat = parse_threat(text)
    if not isinstance(threat, LpBall):
        raise UsageError(f"threat: training is against linf or l2 budgets, not '{text}': write linf:8/255")
    return threat


def _part(key: str, text: str, kind: Any, ball: LpBall) -> tuple[Any, str]:
    try:
        return attack_text.part(text, kind, ball)
    except UsageError as error:
        raise UsageError(f"{key}: {error}") from error
