"""A stage of `auto`: a named attack on the victim or through a view of it, and the passes it may spend."""

from __future__ import annotations

from typing import NamedTuple

from vitattack.attacks.base import Attack
from vitattack.attacks.price import PassesPerImage, PriceQuery
from vitattack.threats.lp import LpBall

MANY_CLASSES = 10**9  # more than any number of targets
# Passes around a stage: clean forward, confirmation of a claim, and verdicts of the judge, the second of which may be two.
STAGE_OVERHEAD = 5


class AutoStage(NamedTuple):
    """A named attack, and the view it runs through: scaled attention unless `scale` is 1, or the block's detour."""

    name: str
    attack: Attack
    scale: float = 1.0
    detour: bool = False

    def price(self, query: PriceQuery) -> PassesPerImage:
        """Passes spent on a sample that the stage does not break."""
        return self.attack.price(query if self.scale == 1 else query.through_view()).victim

    def dearest(self, ball: LpBall) -> int:
        """Most passes the stage may spend on a sample, for any number of classes."""
        return int(self.price(PriceQuery(MANY_CLASSES, ball)).total)
