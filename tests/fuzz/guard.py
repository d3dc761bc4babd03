"""One attempt at parsing under guard: within its time and memory, without running anything, refused in one clean line."""

from __future__ import annotations

import re
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from vitattack.core.errors import VitattackError

LONGEST_MESSAGE = 1000
# What no parser has a reason to do.
FORBIDDEN = {
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.fork",
    "os.forkpty",
    "subprocess.Popen",
    "pty.spawn",
}
FORBIDDEN |= {"webbrowser.open", "ctypes.dlopen", "ftplib.connect", "shutil.rmtree", "os.kill", "os.putenv"}


class Bad(AssertionError):
    """An input was neither parsed nor refused as it should be; the first word of the message names the kind of fault."""


class _Watch:
    """Events of the interpreter while a parser runs; an audit hook cannot be removed, so it is switched."""

    def __init__(self) -> None:
        self.on, self.events = False, list[str]()
        self._hooked = False

    def start(self) -> None:
        if not self._hooked:
            sys.addaudithook(self._hook)
            self._hooked = True
        self.on, self.events = True, []

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if self.on and event in FORBIDDEN:
            self.events.append(f"{event}{args!r:.100}")


_WATCH = _Watch()


@contextmanager
def unwatched() -> Iterator[None]:
    """For what the fuzzer itself does between two calls of a parser."""
    before, _WATCH.on = _WATCH.on, False
    try:
        yield
    finally:
        _WATCH.on = before


def attempt(parse: Callable[[], object], *, seconds: float, megabytes: int) -> str:
    """The outcome of one input: `parsed`, or the refusal with its particulars left out; raises `Bad` for anything else.

    The time is that of this process on the CPU. Memory is the growth of the largest resident size so far.
    """
    peak, began = _peak(), time.process_time()
    _WATCH.start()
    try:
        parse()
        outcome = "parsed"
    except VitattackError as error:
        outcome = _refusal(str(error), type(error).__name__)
    except Bad:
        raise
    except Exception as error:
        raise Bad(f"raw {type(error).__name__}: {error}") from error
    finally:
        _WATCH.on = False
    spent, grown = time.process_time() - began, _peak() - peak
    if _WATCH.events:
        raise Bad(f"ran {_WATCH.events[0]}")
    if spent > seconds:
        raise Bad(f"slow: {spent:.1f} s of at most {seconds:g}")
    if grown > megabytes:
        raise Bad(f"large: {grown} MB more than before, of at most {megabytes}")
    return outcome


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def _refusal(message: str, kind: str) -> str:
    if not message:
        raise Bad(f"silent {kind}")
    if not message.isprintable():
        character = next(c for c in message if not c.isprintable())
        raise Bad(f"unclean message with {character!r}: {message!r:.200}")
    if len(message) > LONGEST_MESSAGE:
        raise Bad(f"long message of {len(message)} characters: {message[:200]}")
    general = re.sub(r"'[^']*'|\"[^\"]*\"", "'...'", message)
    general = re.sub(r"\([^()]*\)", "(...)", general)
    general = re.sub(r"(?:/[\w.+-]+)+/?", "PATH", general)
    return f"refused: {re.sub(r'-?[0-9]+(?:[.,][0-9]+)*', 'N', general)[:70]}"


def expect(condition: bool, what: str) -> None:
    """Raise `Bad` unless a property of a parsed value holds."""
    if not condition:
        raise Bad(f"wrong: {what}")
