"""Calls of functions in new processes, which have an environment of their own, such as one GPU, and end with this one."""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from vitattack.core.errors import sendable
from vitattack.core.processes import end_with_parent

START = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); from vitattack.core.new_process import serve; serve()"
)


class Died(Exception):
    """A process ended without an answer; the message says how."""


class Remote(Exception):
    """The traceback of another process, as the cause of its error here."""


class Failed(NamedTuple):
    error: Exception
    trace: str


class Call:
    """A call of `function`, named as "module:name", with arguments that can be pickled.

    The process is a new Python, not a copy of this program's start, so that a script needs no guard around its own calls.
    """

    def __init__(self, function: str, arguments: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [sys.executable, "-c", START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths, **environment},
        )
        assert self._process.stdin is not None
        with suppress(OSError):  # `result` notices that it has died
            self._process.stdin.write(pickle.dumps((function, dict(arguments))))
            self._process.stdin.close()

    def result(self) -> Any:
        """Wait for what the function returns; what it raises is raised here, `Died` if its process ended before."""
        assert self._process.stdout is not None
        answer = self._process.stdout.read()
        code = self._process.wait()
        try:
            found = pickle.loads(answer)  # noqa: S301  # nosec B301  # of our own process
        except (EOFError, pickle.UnpicklingError):
            raise Died(f"signal {-code}" if code < 0 else f"exit code {code}") from None
        if isinstance(found, Failed):
            raise found.error from Remote(f"\n{found.trace}")
        return found

    def kill(self) -> None:
        """End the process, if it has not ended."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


def serve() -> None:
    """Work on the call on stdin and answer on stdout, which nothing else writes to."""
    end_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    function, arguments = pickle.loads(sys.stdin.buffer.read())  # noqa: S301  # nosec B301  # of the starter
    module, _, name = function.partition(":")
    answer: Any
    try:
        answer = getattr(importlib.import_module(module), name)(**arguments)
    except BaseException as error:  # noqa: BLE001  # the caller raises it
        answer = Failed(sendable(error), traceback.format_exc())
    with suppress(OSError), answers:
        answers.write(pickle.dumps(answer))
