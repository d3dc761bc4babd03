"""Bars in a notebook, without widgets: one output that is written over while work goes on."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vitattack.core.progress import Counter
from vitattack.core.words import in_html, on_terminal

SECONDS_BETWEEN = 0.2


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and "IPKernelApp" in getattr(shell, "config", {})


class NotebookBar:
    """A bar with a line of text; it vanishes when it is closed."""

    def __init__(self, what: str) -> None:
        self._what, self._state = what, ""
        self._done, self._total = 0, 0
        self._began = self._last = time.monotonic()
        self._handle: Any = None

    def show(self, done: int, total: int, state: str = "") -> None:
        """Show how much is done, not more often than eyes can follow."""
        self._done, self._total, self._state = done, total, state
        now = time.monotonic()
        if self._handle is None:
            from IPython.display import display

            self._handle = display(self, display_id=True)
        elif now - self._last >= SECONDS_BETWEEN or done >= total:
            self._handle.update(self)
        else:
            return
        self._last = now

    def close(self) -> None:
        """Take the bar away."""
        if self._handle is not None:
            from IPython.display import HTML

            self._handle.update(HTML(""))
            self._handle = None

    def __repr__(self) -> str:
        elapsed = time.monotonic() - self._began
        left = f", about {elapsed / self._done * (self._total - self._done):.0f} s left" if self._done else ""
        state = f" {self._state}" if self._state else ""
        return on_terminal(f"{self._what}: {self._done} of {self._total}{state} ({elapsed:.0f} s{left})")

    def _repr_html_(self) -> str:
        return f'<progress value="{self._done}" max="{max(1, self._total)}"></progress> {in_html(repr(self))}'


@contextmanager
def counting(what: str, watch: Counter | None) -> Iterator[Counter]:
    """What a caller counts with or, without a caller's wish, a bar in a notebook and nothing elsewhere."""
    if watch is not None or not in_notebook():
        yield watch or (lambda done, total: None)
        return
    bar = NotebookBar(what)
    try:
        yield bar.show
    finally:
        bar.close()
