"""Corruptions of any data as texts: `corruptions:cifar10-demo/fog/3`."""

from __future__ import annotations

from vitattack.core.errors import UsageError
from vitattack.core.registry import did_you_mean
from vitattack.data.labels.other_sets import CORRUPTIONS, EXTRA_CORRUPTIONS

PREFIX = "corruptions"
MISSING = ("frost", "spatter")  # of the published kinds: frost needs photographs, spatter is not written
MADE_HERE = tuple(kind for kind in (*CORRUPTIONS, *EXTRA_CORRUPTIONS) if kind not in MISSING)


def split_corruption(text: str) -> tuple[str, str, int]:
    """The data, the kind and the severity of `DATA/KIND/SEVERITY`."""
    rest, _, severity = text.rpartition("/")
    data, _, kind = rest.rpartition("/")
    if not data or severity not in {"1", "2", "3", "4", "5"}:
        raise UsageError(f"'{PREFIX}:{text[:60]}' lacks a kind or a severity: write {PREFIX}:cifar10-demo/fog/3")
    check_kind(kind)
    return data, kind, int(severity)


def check_kind(kind: str) -> None:
    """Refuse a corruption that cannot be made here."""
    if kind in MISSING:
        raise UsageError(f"{kind} cannot be made here: use a published set such as cifar10-c, or another kind")
    if kind not in MADE_HERE:
        raise UsageError(did_you_mean("corruption", kind, MADE_HERE))
