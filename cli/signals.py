"""SIGTERM handled like Ctrl-C, once a run has begun."""

from __future__ import annotations

import signal
from typing import Any, NoReturn


class Terminated(BaseException):
    """Raised on SIGTERM. Not a KeyboardInterrupt, which click would swallow."""


def _terminate(number: int, frame: Any) -> NoReturn:
    raise Terminated


def catch_sigterm() -> None:
    """Install the handler. Call it after the heavy imports: an exception inside the import of a C extension is lost."""
    signal.signal(signal.SIGTERM, _terminate)
