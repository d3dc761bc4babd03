"""Objects built from the texts of a recipe: threat, objective, hooks, augmentations, optimiser, schedule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from vitattack.attacks import attack_text
from vitattack.core.errors import UsageError
from vitattack.threats.base import parse_threat
from vitattack.threats.lp import NORMS, LpBall
from vitattack.train.augment.base import Augmentation
from vitattack.train.hooks.base import Hook
from vitattack.train.objectives.base import Objective
from vitattack.train.optim.optimisers import OptimiserFactory
from vitattack.train.optim.rate_schedules import RateSchedule
from vitattack.train.recipe import Recipe
from vitattack.train.recipe_part_names import AUGMENTATIONS, HOOKS, OBJECTIVES, OPTIMISERS, RATE_SCHEDULES

attack_text.KINDS.update(
    {
        Objective: OBJECTIVES,
        Hook: HOOKS,
        Augmentation: AUGMENTATIONS,
        OptimiserFactory: OPTIMISERS,
        RateSchedule: RATE_SCHEDULES,
    },
)


@dataclass
class Parts:
    """Objects of one run; hooks have state and are never shared between runs."""

    ball: LpBall
    objective: Objective
    hooks: list[Hook]
    augmentations: list[Augmentation]
    optimiser: OptimiserFactory
    schedule: RateSchedule


def build_parts(recipe: Recipe) -> Parts:
    """Check and build every text of a recipe; a mistake is named with its key."""
    ball = lp_ball(recipe.threat)
    return Parts(
        ball=ball,
        objective=_build("objective", recipe.objective, Objective, ball)[0],
        hooks=[_build("hooks", text, Hook, ball)[0] for text in recipe.hooks],
        augmentations=[_build("augment", text, Augmentation, ball)[0] for text in recipe.augment],
        optimiser=_build("optimiser", recipe.optimiser, OptimiserFactory, ball)[0],
        schedule=_build("rate", recipe.rate, RateSchedule, ball)[0],
    )


def canonical_recipe(recipe: Recipe) -> Recipe:
    """Rewrite every text in its canonical form, so that recipes which do the same are equal."""
    ball = lp_ball(recipe.threat)
    return replace(
        recipe,
        threat=str(ball),
        objective=_build("objective", recipe.objective, Objective, ball)[1],
        hooks=tuple(_build("hooks", text, Hook, ball)[1] for text in recipe.hooks),
        augment=tuple(_build("augment", text, Augmentation, ball)[1] for text in recipe.augment),
        optimiser=_build("optimiser", recipe.optimiser, OptimiserFactory, ball)[1],
        rate=_build("rate", recipe.rate, RateSchedule, ball)[1],
    )


def lp_ball(text: str) -> LpBall:
    """Parse the threat of a recipe; training knows linf and l2 balls only."""
    threat = parse_threat(text)
    if not isinstance(threat, LpBall) or threat.norm not in NORMS:
        raise UsageError(f"threat: training takes linf or l2 budgets, not '{text}': write linf:8/255")
    return threat


def _build(key: str, text: str, kind: Any, ball: LpBall) -> tuple[Any, str]:
    """An object and its canonical text."""
    try:
        return attack_text.parse_part(text, kind, ball)
    except UsageError as error:
        raise UsageError(f"{key}: {error}") from error
