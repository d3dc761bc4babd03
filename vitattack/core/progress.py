"""Listeners for what long work reports: bytes fetched, stages, notes, and warnings; without one, callers get warnings only."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

# Told how many items are done, of how many.
Counter = Callable[[int, int], None]


class Listener:
    """The default listener: ignores progress and notes, and turns warnings into Python warnings."""

    def progress(self, what: str, done: int, total: int | None) -> None:
        """Receive the bytes fetched of a file so far; `total` is None where the host does not say."""

    def stage(self, what: str, done: int, total: int) -> None:
        """Receive how much of a stage is done; it begins with 0 and has ended when all is done."""

    def note(self, line: str) -> None:
        """Receive something a user may like to know, such as a mirror that failed."""

    def warn(self, line: str) -> None:
        """Receive what must not go unnoticed."""
        warnings.warn(line, stacklevel=2)


_current: ContextVar[Listener] = ContextVar("listener", default=Listener())  # noqa: B039  # it holds no state


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Report everything inside the block to `listener`."""
    before = _current.set(listener)
    try:
        yield
    finally:
        _current.reset(before)


def current_listener() -> Listener:
    """The listener of the innermost `listening` block."""
    return _current.get()


@contextmanager
def stage(what: str) -> Iterator[None]:
    """Tell the listener that a stage is at work inside the block."""
    report = current_listener().stage
    report(what, 0, 1)
    try:
        yield
    finally:
        report(what, 1, 1)


def in_stage(what: str, items: Sequence[T]) -> Iterator[T]:
    """Yield the items of a stage, and tell the listener how many are done."""
    report, total = current_listener().stage, len(items)
    if not total:
        return
    try:
        for done, item in enumerate(items):
            report(what, done, total)
            yield item
    finally:
        report(what, total, total)
