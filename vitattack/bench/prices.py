"""What an attack costs at most on a sample that never falls, known from its text; nothing heavy is imported."""

from __future__ import annotations

from typing import NamedTuple


class Passes(NamedTuple):
    """Forwards and backwards of the victim for one image."""

    forwards: float
    backwards: float

    def __add__(self, other: object) -> Passes:
        if not isinstance(other, Passes):
            return NotImplemented
        return Passes(self.forwards + other.forwards, self.backwards + other.backwards)

    def times(self, count: float) -> Passes:
        return Passes(self.forwards * count, self.backwards * count)


def price(attack: str, *, classes: int, threat: str) -> Passes:
    """An upper bound on what an image costs that no step fools, its clean forward and the verdict included."""
    raise NotImplementedError
