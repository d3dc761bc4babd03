"""Prices: passes an attack spends on an image that nothing fools, computed from its settings without running a model.

Every attack computes its own (`Attack.price`); a test compares it with passes counted by hooks. Prices are upper bounds
except for FAB, whose runs are taken to cross the boundary with their first step. They leave out what is
learned once per job on calibration images (the scales of AAS, the order of spatial).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from vitattack.attacks.base import Attack
    from vitattack.threats.base import Threat


class UnknownPrice(Exception):
    """Raised by attacks whose passes are not known beforehand, such as those of other packages."""


class PassesPerImage(NamedTuple):
    """Forwards and backwards for one image."""

    forwards: float = 0
    backwards: float = 0

    def plus(self, other: PassesPerImage) -> PassesPerImage:
        return PassesPerImage(self.forwards + other.forwards, self.backwards + other.backwards)

    def times(self, count: float) -> PassesPerImage:
        return PassesPerImage(self.forwards * count, self.backwards * count)

    @property
    def total(self) -> float:
        return self.forwards + self.backwards


def sum_of(passes: Iterable[PassesPerImage]) -> PassesPerImage:
    """Add up passes."""
    added = PassesPerImage()
    for more in passes:
        added = added.plus(more)
    return added


class PriceQuery(NamedTuple):
    """The model that an attack is priced on: its classes, the threat, and forwards per query and per verdict."""

    classes: int
    threat: Threat
    answers: int = 1  # forwards per query: a view of a random model averages several
    verdict: int = 0  # additional forwards of a verdict

    @property
    def look(self) -> int:
        """Forwards of one query with its verdict."""
        return self.answers + self.verdict

    def through_view(self, answers: int | None = None) -> PriceQuery:
        """Put the model behind a view, whose verdicts cost a forward of the plain victim."""
        return self._replace(answers=self.answers if answers is None else answers, verdict=1)


class Price(NamedTuple):
    """Passes through the victim, and through each model that candidates are crafted on."""

    victim: PassesPerImage = PassesPerImage()
    sources: tuple[tuple[str, PassesPerImage], ...] = ()

    def plus(self, other: Price) -> Price:
        return Price(self.victim.plus(other.victim), self.sources + other.sources)

    def times(self, count: float) -> Price:
        return Price(self.victim.times(count), tuple((name, spent.times(count)) for name, spent in self.sources))

    def more(self, forwards: float, backwards: float = 0) -> Price:
        """Add passes through the victim."""
        return self._replace(victim=self.victim.plus(PassesPerImage(forwards, backwards)))


def total(prices: Iterable[Price]) -> Price:
    """Add up prices."""
    added = Price()
    for price in prices:
        added = added.plus(price)
    return added


# Clean forward before an attack and verdict after it.
CLEAN_AND_VERDICT = PassesPerImage(2, 0)


def of_one_image(attack: Attack, query: PriceQuery) -> Price | None:
    """Price of one image that nothing fools, clean forward and verdict included; None if unknown."""
    try:
        return attack.price(query).more(*CLEAN_AND_VERDICT)
    except UnknownPrice:
        return None
