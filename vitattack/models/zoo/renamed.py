"""Former ids of zoo entries, each refused with the id that replaced it."""

from __future__ import annotations

from collections.abc import Container

from vitattack.core.errors import UsageError

# Prefixes of ids: private codes of papers gave way to author or method and year.
RENAMED = {"s000/": "vitwrn2025/", "s002/": "aas2024/", "s004/": "tora2023/"}


def refuse_former_id(text: str, known: Container[str]) -> None:
    """Raise a UsageError with the new id if the text is a former id of a known model."""
    prefix, slash, rest = text.partition("/")
    current = RENAMED.get(prefix + slash, "") + rest
    if prefix + slash in RENAMED and current in known:
        raise UsageError(f"model '{text}' was renamed: write {current}")
