"""The outcome of one check."""

from __future__ import annotations

from typing import Any, NamedTuple


class Item(NamedTuple):
    """A check: what it asks, the figure it found, the threshold with its source, and whether the figure passes.

    `passed` is None where the check does not apply. A `decisive` one that fails means that the robust accuracy may be an
    upper bound; the others are hints.
    """

    name: str
    asks: str
    figure: str
    threshold: str
    source: str
    passed: bool | None
    decisive: bool = False
    next: str = ""  # the next command to run if it fails

    @property
    def word(self) -> str:
        if self.passed is None:
            return "-"
        return "pass" if self.passed else "FAIL" if self.decisive else "look"

    def json(self) -> dict[str, Any]:
        return self._asdict()
