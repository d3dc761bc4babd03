"""Batches: the records that are written at once, with what was noticed while they were made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BatchNotes:
    """Observations about one batch that belong to its records: they are stored with them, in the same write."""

    doubts: tuple[str, ...] = ()
    backoffs: int = 0  # halvings for lack of memory
    nudged: int = 0  # images that lay outside [0,1] by rounding

    def __add__(self, other: BatchNotes) -> BatchNotes:
        """The notes of two batches, every doubt once."""
        doubts = tuple(dict.fromkeys((*self.doubts, *other.doubts)))
        return BatchNotes(doubts, self.backoffs + other.backoffs, self.nudged + other.nudged)

    @classmethod
    def of_events(cls, events: Iterable[dict[str, Any]]) -> BatchNotes:
        """The notes that are kept as events."""
        found = cls()
        for event in events:
            found += cls(tuple(event.get("doubts", ())), event.get("backoffs", 0), event.get("nudged", 0))
        return found
