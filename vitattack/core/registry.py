"""Registries of everything a user can name: nothing is overwritten silently, and a typo is answered with a suggestion."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from pkgutil import resolve_name
from typing import Generic, TypeVar, cast

from vitattack.core.errors import UsageError, first_line
from vitattack.core.progress import current_listener
from vitattack.core.words import printable

T = TypeVar("T")
LONGEST_NAME = 100
MOST_LISTED = 20


def did_you_mean(kind: str, name: str, known: Iterable[str], renamed: Mapping[str, str] | None = None) -> str:
    """One line that says a name is unknown and what the user may have meant; `renamed` maps former names to new ones."""
    if renamed and name in renamed:
        return f"{kind} '{shortened(name)}' was renamed: write {renamed[name]}"
    choices = sorted(known)
    close = close_matches(name, choices)
    listed = ", ".join(choices[:MOST_LISTED])
    more = f" and {len(choices) - MOST_LISTED} more" if len(choices) > MOST_LISTED else ""
    hint = f"did you mean {' or '.join(close)}?" if close else f"known: {listed}{more}"
    return f"unknown {kind} '{shortened(name)}': {hint}"


def shortened(name: str) -> str:
    """A name on one line, cut where it is too long for a message."""
    words = " ".join(name.split())
    return words if len(words) <= LONGEST_NAME else f"{words[:LONGEST_NAME]}..."


def close_matches(name: str, known: Iterable[str], cutoff: float = 0.5) -> list[str]:
    """The known names closest to this one, if any is close."""
    return difflib.get_close_matches(name[:LONGEST_NAME], sorted(known), n=3, cutoff=cutoff)


class Registry(Generic[T]):
    """A table of objects by name; an entry may be a lazy "module:attribute", imported on first use.

    Packages add entries through `entry_point_group`. A former name in `renamed` is refused with the new one.
    """

    def __init__(
        self, kind: str, entry_point_group: str | None = None, renamed: Mapping[str, str] | None = None
    ) -> None:
        self.kind = kind
        self.renamed = dict(renamed or {})
        self._group = entry_point_group
        self._entries: dict[str, T | str] = {}

    def add(self, name: str, target: T | str) -> None:
        """Register an object, or where to import it from, under a name that is still free."""
        if name in self._entries or name in self.renamed:
            raise ValueError(f"{self.kind} '{name}' is registered already")
        self._entries[name] = target

    def add_lazily(self, package: str, targets: Mapping[str, str]) -> None:
        """Register objects that are imported from modules of a package on first use: {"ce": "plain:CrossEntropy"}."""
        for name, target in targets.items():
            self.add(name, f"{package}.{target}")

    def register(self, name: str) -> Callable[[T], T]:
        """Register the decorated object."""

        def decorate(target: T) -> T:
            self.add(name, target)
            return target

        return decorate

    @contextmanager
    def temporarily(self, name: str, target: T | str) -> Iterator[None]:
        """Add or replace an entry inside the block."""
        self._load_plugins()
        before = dict(self._entries)
        self._entries[name] = target
        try:
            yield
        finally:
            self._entries = before

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
            raise UsageError(did_you_mean(self.kind, name, self, self.renamed))
        target = self._entries[name]
        if isinstance(target, str):
            target = self._entries[name] = self._imported(name, target)
        return target

    def _imported(self, name: str, target: str) -> T:
        try:
            return cast(T, resolve_name(target))
        except (ImportError, AttributeError) as error:
            raise UsageError(
                f"{self.kind} '{name}' cannot be loaded from {target} ({printable(first_line(error))}): "
                "install its package again, or remove it"
            ) from error

    def _load_plugins(self) -> None:
        if self._group is None:
            return
        group, self._group = self._group, None
        for point in sorted(entry_points(group=group), key=lambda point: point.name):
            target = f"{point.module}:{point.attr}"
            if point.name not in self._entries and point.name not in self.renamed:
                self.add(point.name, target)
            elif self._entries.get(point.name) != target:
                current_listener().warn(
                    f"the {self.kind} '{printable(point.name)}' of {printable(target)} is ignored: "
                    "the name is taken, give it another one"
                )
