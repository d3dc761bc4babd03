"""Progress of downloads on stderr: a bar on a terminal, a line now and then elsewhere; warnings always."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from vitattack.core.progress import Listener, listening

from ..terminal import progress_console, say, text_column

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

SECONDS_BETWEEN_LINES = 10.0


class DownloadScreen(Listener):
    """A bar per file with bytes, rate and remaining time, shown from the first byte on."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._told: dict[str, tuple[float, float]] = {}  # when a download began, and when a line was last said

    def watched(self) -> AbstractContextManager[None]:
        return _while(self)

    def progress(self, what: str, done: int, total: int | None) -> None:
        if self.quiet:
            return
        if not sys.stderr.isatty():
            self._say_now_and_then(what, done, total)
            return
        bars = self._bars or self._start()
        if what not in self._tasks:
            self._tasks[what] = bars.add_task(what, total=total)
        bars.update(self._tasks[what], completed=done, total=total)
        if total is not None and done >= total:
            bars.remove_task(self._tasks.pop(what))
            if not self._tasks:
                self.stop()

    def _say_now_and_then(self, what: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        began, spoke = self._told.setdefault(what, (now, now))
        if now - spoke > SECONDS_BETWEEN_LINES and done != total:
            self._told[what] = (began, now)
            of = f" of {total / 1e6:,.0f}" if total else ""
            left = f", about {(now - began) / done * (total - done):.0f} s left" if total and done else ""
            say(f"vitattack: {what}: {done / 1e6:,.0f}{of} MB, {now - began:.0f} s{left}")

    def note(self, line: str) -> None:
        if not self.quiet:
            say(f"vitattack: {line}")

    def warn(self, line: str) -> None:
        say(f"vitattack: {line}")

    def stop(self) -> None:
        if self._bars is not None:
            self._bars.stop()
        self._bars = None

    def _start(self) -> Progress:
        from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn
        from rich.progress import TransferSpeedColumn as Speed

        columns = (text_column("{task.description}"), BarColumn(bar_width=24), DownloadColumn(), Speed())
        self._bars = Progress(*columns, TimeRemainingColumn(), console=progress_console(), transient=True)
        self._bars.start()
        return self._bars


@contextmanager
def _while(screen: DownloadScreen) -> Iterator[None]:
    try:
        with listening(screen):
            yield
    finally:
        screen.stop()
