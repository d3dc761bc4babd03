"""Prices: the passes an attack spends on an image that nothing fools, known from its settings without running a model.

Every attack computes its own (`Attack.price`); a test compares the two with the passes counted by hooks. They are upper
bounds but for FAB, which spends up to twice as much where points beyond the budget fool the model. What is learned once
per job on calibration images (the scales of AAS, the order of spatial) is not in them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from vitattack.attacks.base import Attack
    from vitattack.threats.base import Threat


class Unknown(Exception):
    """The price of an attack that does not say, or of a package that counts as it likes."""


class Passes(NamedTuple):
    """Forwards and backwards for one image."""

    forwards: float = 0
    backwards: float = 0

    def plus(self, other: Passes) -> Passes:
        return Passes(self.forwards + other.forwards, self.backwards + other.backwards)

    def times(self, count: float) -> Passes:
        return Passes(self.forwards * count, self.backwards * count)

    @property
    def total(self) -> float:
        return self.forwards + self.backwards


def sum_of(passes: Iterable[Passes]) -> Passes:
    added = Passes()
    for some in passes:
        added = added.plus(some)
    return added


class Asked(NamedTuple):
    """The model an attack is priced on: its classes, the threat, and what an answer and a verdict cost through a view."""

    classes: int
    threat: Threat
    answers: int = 1  # forwards per question: a view of a random model gives several answers
    verdict: int = 0  # forwards that a verdict costs beside the answer

    @property
    def look(self) -> int:
        """Forwards of one look at a sample, its verdict included."""
        return self.answers + self.verdict

    def through_view(self, answers: int | None = None) -> Asked:
        """The same model behind a view, whose verdicts are forwards of the plain victim."""
        return self._replace(answers=self.answers if answers is None else answers, verdict=1)


class Price(NamedTuple):
    """Passes through the victim, and through each model that candidates are crafted on."""

    victim: Passes = Passes()
    sources: tuple[tuple[str, Passes], ...] = ()

    def plus(self, other: Price) -> Price:
        return Price(self.victim.plus(other.victim), self.sources + other.sources)

    def times(self, count: float) -> Price:
        return Price(self.victim.times(count), tuple((name, spent.times(count)) for name, spent in self.sources))

    def more(self, forwards: float, backwards: float = 0) -> Price:
        """The price with so many more passes through the victim."""
        return self._replace(victim=self.victim.plus(Passes(forwards, backwards)))


def total(prices: Iterable[Price]) -> Price:
    added = Price()
    for price in prices:
        added = added.plus(price)
    return added


# The clean forward before an attack, and the verdict after it.
AROUND = Passes(2, 0)


def of_one_image(attack: Attack, asked: Asked) -> Price | None:
    """The price of one image that no step fools, its clean forward and the verdict included; None where nobody knows."""
    try:
        return attack.price(asked).more(*AROUND)
    except Unknown:
        return None
