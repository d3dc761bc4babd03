"""The verdict on a claimed robust accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from vitattack.checks.claim import Claim
from vitattack.checks.item import Item
from vitattack.core.percent import percent, span
from vitattack.records.stats import Accuracy

Word = Literal["holds", "does not hold", "cannot tell"]
EXIT_CODES: dict[Word, int] = {"holds": 0, "does not hold": 3, "cannot tell": 4}


class Verdict(NamedTuple):
    """A word, and the reasons for it."""

    word: Word
    reasons: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.word]


def judge(claim: Claim | None, found: Accuracy, items: Sequence[Item]) -> Verdict:
    """The verdict on a claim, or without one on the number found itself.

    A claim above what was found does not hold, whatever the checks say: the examples exist. A claim that was not refuted
    holds if every decisive check passed; otherwise examples may have been missed.
    """
    measured = f"{percent(found.accuracy)} found ({span(found.low, found.high)}, n = {found.n})"
    if claim is not None and claim.robust is not None:
        measured = f"{found.correct} found on the same images"
    if claim is not None and claim.is_refuted_by(found):
        return Verdict("does not hold", (f"{claim} claimed, {measured}",))
    failed = [item for item in items if item.decisive and item.passed is False]
    if failed:
        reasons = tuple(f"{item.name}: {item.figure} (wanted: {item.threshold})" for item in failed)
        return Verdict("cannot tell", (f"{measured}, which may be an upper bound", *reasons))
    claimed = "" if claim is None else f"{claim} claimed, "
    passed = sum(item.passed is True for item in items)
    return Verdict("holds", (f"{claimed}{measured}", f"{passed} of {len(items)} checks passed, no decisive one failed"))
