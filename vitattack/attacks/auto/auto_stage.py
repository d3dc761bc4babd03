"""A stage of `auto`: a named attack on the victim or through a view of it, and the passes it may spend."""

from __future__ import annotations

from typing import NamedTuple

from vitattack.attacks.base import Attack
from vitattack.attacks.losses.base import CLAIM_DRAWS
from vitattack.attacks.price import PassesPerImage, PriceQuery
from vitattack.models.victim import Victim
from vitattack.records.draws import DRAWS
from vitattack.threats.lp import LpBall

MANY_CLASSES = 10**9  # more than any number of targets
# Passes around a stage: clean forward, confirmation of a claim, and verdicts of the judge, the second of which may be two.
STAGE_OVERHEAD = 5


def overhead(victim: Victim) -> int:
    """Passes around a stage on this victim: a random one is asked several times, for the image, a claim and a verdict."""
    return 2 * DRAWS + CLAIM_DRAWS if victim.is_random else STAGE_OVERHEAD


class AutoStage(NamedTuple):
    """A named attack, and the view it runs through: scaled attention unless `scale` is 1, or the block's detour."""

    name: str
    attack: Attack
    scale: float = 1.0
    detour: bool = False

    def price(self, query: PriceQuery) -> PassesPerImage:
        """Passes spent on a sample that the stage does not break."""
        return self.attack.price(query if self.scale == 1 else query.through_view()).victim

    def dearest(self, ball: LpBall, victim: Victim | None = None) -> int:
        """Most passes the stage may spend on a sample, for any number of classes; each look at a random victim may be a claim."""
        price = self.price(PriceQuery(MANY_CLASSES, ball))
        claims = (CLAIM_DRAWS - 1) * price.forwards if victim is not None and victim.is_random else 0
        return int(price.total + claims)
