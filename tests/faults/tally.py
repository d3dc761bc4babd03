"""Verdicts of trials and the table that counts them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

COLUMNS = ("injected", "survived", "refused", "lost", "doubled", "wrong", "silent", "unclean")
FAILURES = ("lost", "doubled", "wrong", "silent", "unclean")


@dataclass
class Verdict:
    """What came of one trial.

    `survived`: faults after which the same numbers came out; `refused`: ended in one line and a code of its own. `lost`:
    stored batches that were computed again; `doubled`: records that stand twice; `wrong`: other numbers or records than
    undisturbed; `silent`: stored records dropped without a word; `unclean`: tracebacks, errors nobody foresaw, hangs.
    """

    injected: int = 0
    survived: int = 0
    refused: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    silent: int = 0
    unclean: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return any(getattr(self, name) for name in FAILURES)

    def json(self) -> dict[str, Any]:
        return asdict(self)


def table(verdicts: Iterable[tuple[str, Verdict]]) -> str:
    """One line per kind of fault, and their sum."""
    sums: dict[str, Verdict] = {}
    trials: dict[str, int] = {}
    for kind, verdict in verdicts:
        for name in (kind, "all"):
            total = sums.setdefault(name, Verdict())
            trials[name] = trials.get(name, 0) + 1
            for column in COLUMNS:
                setattr(total, column, getattr(total, column) + getattr(verdict, column))
    rows = [("", "trials", *COLUMNS)]
    names = [*(name for name in sorted(sums) if name != "all"), *(["all"] if sums else [])]
    rows += [(name, *map(str, (trials[name], *(getattr(sums[name], c) for c in COLUMNS)))) for name in names]
    return "\n".join(_aligned(rows))


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
