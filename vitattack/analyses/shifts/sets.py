"""Corruptions that are looked at, and the texts of published sets. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from vitattack.core.errors import UsageError
from vitattack.core.registry import did_you_mean
from vitattack.data.corruptions.names import MADE_HERE, check_kind
from vitattack.data.labels.other_sets import CORRUPTIONS, EXTRA_CORRUPTIONS
from vitattack.data.request import read_request
from vitattack.data.rows import split_rows

PUBLISHED_KINDS = (*CORRUPTIONS, *EXTRA_CORRUPTIONS)


class Corruption(NamedTuple):
    """A kind at a severity, with the data text of its published images if there are any."""

    kind: str
    severity: int
    text: str = ""


def chosen_kinds(kinds: Sequence[str]) -> tuple[str, ...]:
    """The kinds asked for, all that can be made here without any."""
    for kind in kinds:
        check_kind(kind)
    return tuple(kinds) or MADE_HERE


def published_sets(
    data: str, data_dir: Path | None, kinds: Sequence[str], severities: Sequence[int]
) -> tuple[Corruption, ...]:
    """The corruptions of a published set, or those whose files are here if no kinds are named; none of other data."""
    name, rows = split_rows(data)
    entry = read_request(data).entry
    if entry is None or not entry.severities:
        return ()
    if "/" in name:
        raise UsageError(f"corruptions takes the whole set: write --data {name.partition('/')[0]}, and kinds= for some")
    for kind in kinds:
        if kind not in PUBLISHED_KINDS:
            raise UsageError(did_you_mean("corruption", kind, PUBLISHED_KINDS))
    here = [kind for kind in PUBLISHED_KINDS if entry.is_at_hand(data_dir, kind)]
    behind = f"[{rows}]" if rows else ""
    return tuple(
        Corruption(kind, severity, f"{name}/{kind}/{severity}{behind}")
        for kind in kinds or here or PUBLISHED_KINDS[:1]  # of files that are not there the first is refused
        for severity in severities
    )
