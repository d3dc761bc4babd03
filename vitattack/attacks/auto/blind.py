"""Stages of `auto` for models without gradients: random points of the ball, then Square."""

from __future__ import annotations

from vitattack.attacks.auto.auto_stage import AutoStage, overhead
from vitattack.attacks.auto.numbering import BLIND
from vitattack.attacks.black_box.noise import random
from vitattack.attacks.black_box.square import square
from vitattack.attacks.losses.base import CLAIM_DRAWS
from vitattack.models.victim import Victim
from vitattack.threats.lp import LpBall

TRIES, QUERIES = 10, 5000
LOST = 4  # passes already spent on each sample: the probe, the stage that found no gradient, the search for the reason


def blind_stages(ball: LpBall, budget: int | None, victim: Victim) -> tuple[AutoStage, ...]:
    """The stages, with queries that a budget of passes per sample pays for."""
    tries, queries = TRIES, QUERIES
    if budget is not None:
        query = CLAIM_DRAWS if victim.is_random else 1
        left = max(2, (budget - LOST - 2 * overhead(victim)) // query)
        tries = min(TRIES, left // 2)
        queries = min(QUERIES, left - tries)
    attacks = random(ball, tries=tries), square(ball, queries=queries)
    return tuple(AutoStage(name, attack) for name, attack in zip(BLIND, attacks, strict=True))
