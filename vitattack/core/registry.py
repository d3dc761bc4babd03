"""Names to objects, for everything a user can name: no silent overwrite, and a typo is answered with a suggestion."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import entry_points
from typing import Generic, TypeVar, cast

from vitattack.core.errors import UsageError

T = TypeVar("T")
LONGEST_NAME = 100


def did_you_mean(kind: str, name: str, known: Iterable[str]) -> str:
    """One line that says a name is unknown and what the user may have meant."""
    choices = sorted(known)
    close = resembles(name, choices)
    some = ", ".join(choices[:20]) + (f" and {len(choices) - 20} more" if len(choices) > 20 else "")
    hint = f"did you mean {' or '.join(close)}?" if close else f"known: {some}"
    return f"unknown {kind} '{shortened(name)}': {hint}"


def shortened(name: str) -> str:
    words = " ".join(name.split())
    return words if len(words) <= LONGEST_NAME else f"{words[:LONGEST_NAME]}..."


def resembles(name: str, known: Iterable[str]) -> list[str]:
    """The known names that are nearest, if any is near."""
    return difflib.get_close_matches(name[:LONGEST_NAME], sorted(known), n=3, cutoff=0.5)


class Registry(Generic[T]):
    """A table of objects by name; an entry may be a lazy "module:attribute", imported on first use."""

    def __init__(self, kind: str, entry_point_group: str | None = None) -> None:
        self.kind = kind
        self._group = entry_point_group
        self._entries: dict[str, T | str] = {}

    def add(self, name: str, target: T | str) -> None:
        if name in self._entries:
            raise ValueError(f"{self.kind} '{name}' is registered already")
        self._entries[name] = target

    def register(self, name: str) -> Callable[[T], T]:
        def keep(target: T) -> T:
            self.add(name, target)
            return target

        return keep

    def __contains__(self, name: str) -> bool:
        if name not in self._entries:
            self._load_plugins()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        self._load_plugins()
        return iter(sorted(self._entries))

    @property
    def in_order(self) -> tuple[str, ...]:
        """The names in the order they were added, those of plug-ins last."""
        self._load_plugins()
        return tuple(self._entries)

    def __getitem__(self, name: str) -> T:
        if name not in self:
            raise UsageError(did_you_mean(self.kind, name, self))
        target = self._entries[name]
        if isinstance(target, str):
            module, _, attribute = target.partition(":")
            target = cast(T, getattr(importlib.import_module(module), attribute))
            self._entries[name] = target
        return target

    def _load_plugins(self) -> None:
        if self._group is None:
            return
        group, self._group = self._group, None
        for point in entry_points(group=group):
            if point.name not in self._entries:
                self.add(point.name, f"{point.module}:{point.attr}")
