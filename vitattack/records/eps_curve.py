"""Accuracy over several budgets, which should fall as the budget grows; a rise is a failure of the attack."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from vitattack.records.stats import Accuracy
from vitattack.threats.base import parse_threat
from vitattack.threats.lp import LpBall


def optimiser_failures(points: Sequence[tuple[str, Accuracy]]) -> list[str]:
    """Doubts about budgets at which accuracy is more than a standard error above that of a smaller one of the same norm.

    A larger ball contains the smaller one, so that only a failure of the attack can make more images look robust.
    """
    balls = [(ball, accuracy) for text, accuracy in points if isinstance(ball := parse_threat(text), LpBall)]
    found = []
    for norm in dict.fromkeys(ball.norm for ball, _ in balls):
        run = sorted(((b, a) for b, a in balls if b.norm == norm), key=lambda pair: pair[0].eps)
        for (small, before), (large, after) in itertools.pairwise(run):
            error = math.sqrt(before.accuracy * (1 - before.accuracy) / max(1, before.n))
            if after.accuracy > before.accuracy + error:
                found.append(
                    f"accuracy rises from {before.accuracy:.1%} at {small} to {after.accuracy:.1%} at {large}: "
                    "the attack fails at the larger budget; give it more steps or another loss"
                )
    return found
