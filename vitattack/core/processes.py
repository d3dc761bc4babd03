"""Processes: whether one is still alive, and workers that end with the process that started them."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import platform
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import wait
from pathlib import Path

PR_SET_PDEATHSIG = 1
PF_EXITING = 0x4
SECONDS_BETWEEN_LOOKS = 0.5


@dataclass(frozen=True)
class ProcessId:
    """A process of this machine. Numbers are used again, so the start of the process is part of its identity."""

    pid: int
    started: str = ""  # empty where the system does not say

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        return cls(pid, _Status.of(pid).started)

    def ended(self) -> bool:
        """Whether the process is certainly gone."""
        if sys.platform == "win32":
            return False  # signal 0 would end it there
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            pass  # it belongs to somebody else
        status = _Status.of(self.pid)
        return status.dead or (self.started != "" and status.started not in ("", self.started))

    def ending(self) -> bool:
        """Whether the process is gone or on its way, perhaps still holding its files."""
        return self.ended() or _Status.of(self.pid).exiting


@dataclass(frozen=True)
class _Status:
    started: str = ""
    dead: bool = False
    exiting: bool = False

    @classmethod
    def of(cls, pid: int) -> _Status:
        """What the system says of a process; nothing where it says nothing."""
        if sys.platform == "win32":
            return cls()
        if sys.platform != "linux":
            with suppress(OSError, subprocess.SubprocessError):
                words = ("ps", "-o", "lstart=", "-p", str(pid))
                return cls(subprocess.run(words, capture_output=True, text=True, timeout=5).stdout.strip())
            return cls()
        with suppress(OSError, ValueError, IndexError):
            # the name, in brackets, may itself hold brackets and blanks
            fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            state, flags, started = fields[0], int(fields[6]), fields[19]
            return cls(started, state in "ZX", bool(flags & PF_EXITING))
        return cls()


@cache
def machine() -> str:
    """The machine as booted, or its name where the system does not count its boots."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return platform.node()


def process_space() -> str:
    """The space in which process numbers are valid: containers have one each."""
    with suppress(OSError):
        return str(Path("/proc/self/ns/pid").readlink())
    return ""


class _Driver:
    """The process that this one ends with, if any."""

    found: ProcessId | None = None


def driver() -> ProcessId | None:
    """The process on whose behalf this one works and with which it ends, if there is one."""
    return _Driver.found


def end_with_parent() -> None:
    """End this worker as soon as its parent has died: nobody is left to listen, and it may hold locks.

    Killed by the kernel on Linux, by a thread elsewhere. What was being computed is lost; finished batches are stored.
    """
    if _Driver.found is not None:
        return
    started_by, above = multiprocessing.parent_process(), os.getppid()
    _Driver.found = parent = ProcessId.of(above if started_by is None or started_by.pid is None else started_by.pid)
    end_with(above)
    if parent.ended():  # it died before that
        os._exit(1)
    handle = None if started_by is None else started_by.sentinel
    threading.Thread(target=_watch, args=(parent, handle), name="watch over the parent", daemon=True).start()


def end_with(parent: int) -> None:
    """Let the kernel kill this process with the thread of its parent that started it, on Linux; at once if that has died."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # a libc without it
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _watch(parent: ProcessId, handle: int | None) -> None:
    if handle is not None:
        wait([handle])
    else:
        over = threading.Event()
        while not parent.ended() and os.getppid() == parent.pid:
            over.wait(SECONDS_BETWEEN_LOOKS)
    os._exit(1)
