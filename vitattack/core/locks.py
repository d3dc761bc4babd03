"""Locks between processes: the lock of the file system where it has one, and a lease file beside the locked file.

Whoever holds both keeps out other processes of the machine and of other machines, whatever their file system knows of
locks. A process that dies holds nothing any more: at once for others of its machine, after a minute for other machines.
"""

from __future__ import annotations

import errno
import math
import os
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from vitattack.core.errors import UsageError
from vitattack.core.files import cache_folder, cache_not_writable, cannot_write, no_pipe
from vitattack.core.leases import Holder, Lease, Sight, take_over
from vitattack.core.processes import machine
from vitattack.core.progress import current_listener
from vitattack.core.words import safe_file_name

SECONDS_BEFORE_WAITING_IS_NOTED = 0.5
SECONDS_FOR_THE_KILLED = 0.5  # a process that was killed just now may need a moment to be gone
SECONDS_FOR_WORKERS = 30.0  # workers of a killed run that have not noticed yet
SECONDS_BETWEEN_LOOKS = 0.05
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class Locked(UsageError):
    """Another process holds a lock."""

    def __init__(self, doing: str, holder: Holder | None) -> None:
        who = f" ({holder.name})" if holder else ""
        super().__init__(f"another process is {doing}{who}: wait for it, stop it, or give another --out")


class FileLock:
    """A file of which this process is the only user, until `release`."""

    def __init__(self, stream: IO[Any], lease: Lease, *, flock: bool) -> None:
        self._lease = lease
        self.release = weakref.finalize(self, _release, stream, lease, flock)  # at the latest when the process ends

    def confirm(self) -> None:
        """Raise if the file was taken over by another machine, to which this process had given no sign of life."""
        self._lease.confirm()


def lock_file(stream: IO[Any], path: Path, doing: str = "") -> FileLock:
    """Lock an open file against other processes; raises `Locked` if one of them is `doing` something with it.

    Waits for processes that are about to die, and watches a lease of another machine for a sign of life.
    """
    claim = _Claim(path)
    try:
        while (lock := _attempt(stream, claim)) is None:
            if claim.is_hopeless():
                raise Locked(doing or f"writing {path}", claim.holder)
            claim.say_why()
            time.sleep(SECONDS_BETWEEN_LOOKS)
    except OSError as error:
        raise cannot_write(path, error) from error
    return lock


@contextmanager
def cache_lock(name: str, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Admit one process at a time, calling `waiting` before a long wait; a process that dies releases its lock."""
    path = cache_folder("locks") / (safe_file_name(name) + ".lock")
    with ExitStack() as held:
        try:
            stream = held.enter_context(no_pipe(path).open("ab"))
            claim, began, told = _Claim(path), time.monotonic(), False
            while (lock := _attempt(stream, claim)) is None:
                if not told and time.monotonic() - began > SECONDS_BEFORE_WAITING_IS_NOTED:
                    told = True
                    waiting()
                time.sleep(SECONDS_BETWEEN_LOOKS)
        except OSError as error:
            raise cache_not_writable(error) from error
        held.callback(lock.release)
        yield


def _attempt(stream: IO[Any], claim: _Claim) -> FileLock | None:
    """Lock an open file now, first with the lock of the file system and then with its lease, or learn who has it."""
    flock, lease = _flock(stream), None
    try:
        lease = claim.attempt(flock)
    finally:
        if lease is None and flock:
            _unlock(stream)
    return None if lease is None else FileLock(stream, lease, flock=flock is True)


class _Claim:
    """Repeated attempts to get the lease of one file, with what they saw of its holder.

    Whoever takes a dead lease over holds a lease of its own on that lease meanwhile (`records.lease.lease`): between
    the look at a dead lease and its removal, nobody else can have put a living one in its place.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lease_path = path.with_name(path.name + ".lease")
        self._began = time.monotonic()
        self._seen: Sight | None = None
        self._seen_at = self._began  # when the lease was first seen as it is now
        self._has_moved = False
        self._patience = 0.0
        self._why, self._told = "", False
        self._right: _Claim | None = None  # to take over a dead lease
        self._awaited: _Claim | None = None  # the same, where somebody else has the right now

    @property
    def holder(self) -> Holder | None:
        """The process that was seen to hold the file."""
        return self._seen.holder if self._seen else None

    def attempt(self, flock: bool | None) -> Lease | None:
        """Get the lease now, or learn who has it; `flock` is whether the file system's lock was had (None: has none)."""
        self._look()
        self._awaited = None
        seen, lease = self._seen, None
        if flock is not False and seen is None:
            lease = Lease.create(self._lease_path, flock=flock is True)
        elif flock is not False and seen is not None and self._is_dead(seen, flock=flock is True):
            lease = self._take(seen, flock=flock is True)
        if lease is None:
            self._judge(held=flock is False)
        return lease

    def is_hopeless(self) -> bool:
        """Whether the holder is alive, or has been awaited long enough."""
        if self._awaited is not None:
            return self._awaited.is_hopeless()
        return time.monotonic() - self._began > self._patience

    def say_why(self) -> None:
        """Tell the user once what a long wait is for."""
        if self._awaited is not None:
            self._awaited.say_why()
        elif self._why and not self._told and time.monotonic() - self._began > SECONDS_BEFORE_WAITING_IS_NOTED:
            current_listener().note(self._why)
            self._told = True

    def _take(self, dead: Sight, *, flock: bool) -> Lease | None:
        """Make a lease in the place of a dead one; None if somebody else was faster."""
        self._right = self._right or _Claim(self._lease_path)
        right = self._right.attempt(None)
        if right is None:
            self._awaited = self._right
            return None
        try:
            take_over(self._lease_path, dead)
            return Lease.create(self._lease_path, flock=flock)
        finally:
            right.release()

    def _look(self) -> None:
        before, self._seen = self._seen, Sight.of(self._lease_path)
        if self._seen != before:
            self._has_moved = before is not None and self._seen is not None
            self._seen_at = time.monotonic()

    def _is_dead(self, seen: Sight, *, flock: bool) -> bool:
        """Whether the holder of a lease is gone, as far as it can be told without the lock of the file system."""
        holder = seen.holder
        if holder is not None and holder.is_near:
            if holder.process.pid == os.getpid():
                return holder.token not in Lease.held
            return holder.process.ended()
        if holder is not None and holder.machine == machine() and holder.flock and flock:
            return True  # in another container of this machine: its lock would have kept ours away
        return time.monotonic() - self._seen_at >= seen.patience

    def _judge(self, *, held: bool) -> None:
        """Decide how long the holder is worth waiting for, and say why."""
        holder, why = self.holder, ""
        self._patience = SECONDS_FOR_THE_KILLED
        if holder is not None and holder.is_near:
            killed = holder.driver is not None and holder.driver.ended()
            if killed or holder.process.ending():
                self._patience = SECONDS_FOR_WORKERS
                why = f"{self._path} is held by a worker of a run that was killed ({holder.name}): waiting for its end"
        elif self._seen is not None and not held:
            self._patience = 0.0 if self._has_moved else math.inf
            who = holder.name if holder else "an unknown process"
            why = f"{self._path} is held by {who}: waiting {self._seen.patience:.0f} s for a sign of life"
        self._why = why


def _flock(stream: IO[Any]) -> bool | None:
    """Whether the file system's lock was taken; None where there are no locks."""
    try:
        import fcntl
    except ImportError:  # on Windows
        return None
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in NO_LOCKS:
            return None
        raise
    return True


def _unlock(stream: IO[Any]) -> None:
    import fcntl

    with suppress(OSError, ValueError):  # ValueError: the stream is closed, and its lock with it
        fcntl.flock(stream, fcntl.LOCK_UN)


def _release(stream: IO[Any], lease: Lease, flock: bool) -> None:
    if lease.holder.process.pid == os.getpid():  # a fork shares the lock of its parent
        lease.release()
        if flock:
            _unlock(stream)
