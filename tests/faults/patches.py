"""Changes that a fork of the zygote makes before it runs its command: where it dies, what its clock and its locks say."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CHANGING = frozenset({"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink"})


@contextmanager
def applied(patches: Mapping[str, Any]) -> Iterator[None]:
    """Apply patches by name until the process ends."""
    for name, value in patches.items():
        PATCHES[name](value)
    yield


def _die_at(settings: Mapping[str, Any]) -> None:
    """Send the own group a signal at a change of the file system: the n-th open for writing, rename, removal or fsync.

    With `n` 0, nobody dies and the number of changes is written to the file `count`.
    """
    seen = 0
    n, number = int(settings["n"]), int(settings["signal"])
    where = os.path.realpath(settings["below"])

    def happened() -> None:
        nonlocal seen
        seen += 1
        if seen == n:
            os.killpg(os.getpid(), number)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            if isinstance(path, str) and isinstance(flags, int) and flags & WRITING and below(path):
                happened()
        elif event in CHANGING and isinstance(args[0], str | os.PathLike) and below(os.fspath(args[0])):
            happened()

    def below(path: str) -> bool:
        return os.path.realpath(path).startswith(where)

    sync = os.fsync

    def fsync(handle: int) -> None:
        happened()
        sync(handle)
        happened()

    os.fsync = fsync  # type: ignore[assignment]
    sys.addaudithook(hook)
    if settings.get("count"):
        leave = os._exit

        def counted(code: int) -> None:
            Path(settings["count"]).write_text(str(seen))
            leave(code)

        os._exit = counted  # type: ignore[assignment]


def _clock(seed: int) -> None:
    """A wall clock that jumps by hours in both directions; the monotonic clock goes on."""
    luck, true, true_ns = random.Random(seed), time.time, time.time_ns
    offset = 0.0

    def jump() -> float:
        nonlocal offset
        if luck.random() < 0.2:
            offset = luck.choice((-1, 1)) * luck.choice((1.0, 60.0, 3600.0, 86400.0, 1e8))
        return offset

    time.time = lambda: true() + jump()
    time.time_ns = lambda: true_ns() + int(jump() * 1e9)


def _absent_locks(_: object) -> None:
    """A file system without locks, as some network mounts are."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    fcntl.flock = refuse  # type: ignore[assignment]
    fcntl.lockf = refuse  # type: ignore[assignment]


def _local_locks(_: object) -> None:
    """Locks that are local to a node: another node holds them too."""
    fcntl.flock = lambda *_: None  # type: ignore[assignment]
    fcntl.lockf = lambda *_: None  # type: ignore[assignment]


def _node(name: str) -> None:
    """Another machine, as far as its name goes."""
    import platform
    import socket

    platform.node = lambda: name
    socket.gethostname = lambda: name
    known = os.uname()
    os.uname = lambda: os.uname_result((known.sysname, name, known.release, known.version, known.machine))  # type: ignore[assignment]


def _short_auto(then: str) -> None:
    """Blocks of a few samples; a later pass over all survivors, which is a short probe or a short escalation."""
    from vitattack.attacks.auto import assurance, attack
    from vitattack.attacks.autoattack.autoattack import autoattack

    whole = attack.assurance
    changes = {"share": 100.0} if then == "probe" else {"blind": -1.0}
    assurance.QUERIES, assurance.STEPS = 20, 4  # type: ignore[misc]
    assurance.autoattack = lambda ball: autoattack(ball, steps=2, queries=20)  # type: ignore[attr-defined]
    attack.assurance = lambda ball, first: replace(whole(ball, first), **changes)  # type: ignore[attr-defined]
    attack.BLOCK = 8  # type: ignore[misc]


def _largest_file(size: int) -> None:
    """Refuse to let any file grow beyond a size, as a full disk does; what is printed goes through pipes."""
    import resource
    import signal

    readers = [_through_pipe(number) for number in (1, 2)]
    leave = os._exit

    def exit_after_readers(code: int) -> None:
        os.close(1)
        os.close(2)
        for reader in reversed(readers):
            os.waitpid(reader, 0)
        leave(code)

    os._exit = exit_after_readers  # type: ignore[assignment]
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def _through_pipe(number: int) -> int:
    """Put a pipe in front of a file, and a process that copies; returns its id."""
    reading, writing = os.pipe()
    reader = os.fork()
    if reader == 0:
        os.close(writing)
        while piece := os.read(reading, 1 << 16):
            os.write(number, piece)
        os._exit(0)
    os.close(reading)
    os.dup2(writing, number)
    os.close(writing)
    return reader


def _slowly(seconds: float) -> None:
    """A pause before every fsync, so that others come between."""
    sync = os.fsync

    def fsync(handle: int) -> None:
        time.sleep(seconds)
        sync(handle)

    os.fsync = fsync  # type: ignore[assignment]


PATCHES = {
    "die_at": _die_at,
    "clock": _clock,
    "absent_locks": _absent_locks,
    "local_locks": _local_locks,
    "node": _node,
    "short_auto": _short_auto,
    "largest_file": _largest_file,
    "slowly": _slowly,
}
