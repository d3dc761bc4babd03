"""SIGTERM handled like Ctrl-C, from the moment there is something to lose."""

from __future__ import annotations

import signal
from typing import Any, NoReturn


class Terminated(BaseException):
    """SIGTERM: what is finished is stored, and the user is told how to go on. No KeyboardInterrupt, which click eats."""


def _terminate(number: int, frame: Any) -> NoReturn:
    raise Terminated


def catch_sigterm() -> None:
    """Called after the heavy imports: an exception raised inside the import of a C extension is lost."""
    signal.signal(signal.SIGTERM, _terminate)
