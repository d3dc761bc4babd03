"""Who hears what fetching has to tell; whoever calls the library hears warnings only."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Watch:
    """The default: no progress, no notes, and a Python warning for what must not be silent."""

    def progress(self, what: str, done: int, total: int | None) -> None:
        """So many bytes of a file have come; `total` is None where the host does not say."""

    def note(self, line: str) -> None:
        """Something a user may like to know, such as a mirror that failed."""

    def warn(self, line: str) -> None:
        warnings.warn(line, stacklevel=2)


_current: ContextVar[Watch] = ContextVar("watch", default=Watch())  # noqa: B039  # it holds no state


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Whatever is fetched inside is told to `watch`."""
    before = _current.set(watch)
    try:
        yield
    finally:
        _current.reset(before)


def current() -> Watch:
    return _current.get()
