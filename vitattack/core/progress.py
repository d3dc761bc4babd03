"""Listeners for what long work reports: bytes fetched, notes, and warnings; without one, a caller gets warnings only."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# Told how many items are done, of how many.
Counter = Callable[[int, int], None]


class Listener:
    """The default listener: ignores progress and notes, and turns warnings into Python warnings."""

    def progress(self, what: str, done: int, total: int | None) -> None:
        """Receive the bytes fetched of a file so far; `total` is None where the host does not say."""

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
