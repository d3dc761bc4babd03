"""The command in a fork of the test process: a process of its own, to be stopped like any other, that has torch already."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vitattack.cli.main import main


@dataclass
class Forked:
    """A command that runs, or has ended."""

    pid: int
    stderr_file: Path
    returncode: int | None = None

    @property
    def stderr(self) -> str:
        return self.stderr_file.read_text()

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def wait(self, seconds: float = 240) -> int:
        deadline = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
                raise AssertionError(f"the command did not end in {seconds} seconds: {self.stderr}")
            time.sleep(0.002)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


def fork(*words: str, cwd: Path, before: Callable[[], None] | None = None) -> Forked:
    """Start a command of one thread in a folder; `before` is called in its process."""
    errors = cwd / f"stderr-{time.monotonic_ns()}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of later Pythons, where the test process has threads
        pid = os.fork()
    if pid:
        return Forked(pid, errors)
    code = 70
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # one started in the background ignores it
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.chdir(cwd)
        for path, number in ((Path(os.devnull), 1), (errors, 2)):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
            os.dup2(handle, number)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        sys.argv = ["vitattack", *words]
        if before is not None:
            before()
        main()
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:  # noqa: BLE001  # whatever it is, it is not the test's
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
