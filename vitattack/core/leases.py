"""Lease files: a note beside a locked file that says who works on it, and beats while they do.

File locks fail to keep two writers apart where a file system has none, or where each machine of a cluster has its own.
A lease is a file that only one process can create. Its second line is a count that its holder raises every few seconds.
Others take the lease over when its holder has ended on their own machine, or when the count has not moved for a minute
of their own waiting: no clock of one machine is compared with that of another.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from typing import Any, ClassVar

from vitattack.core.errors import VitattackError
from vitattack.core.files import cannot_write, no_pipe
from vitattack.core.processes import ProcessId, driver, machine, process_space

TEXTS = ("token", "host", "machine", "space", "since")
SECONDS_BETWEEN_BEATS = 5.0
SILENT_AFTER = 60.0  # seconds without a beat after which a holder on another machine counts as dead
SILENT_UNWRITTEN = 5.0  # the same for a lease without content: its maker died between two system calls


@dataclass(frozen=True)
class Holder:
    """The process that holds a lease, as written there."""

    token: str  # of this lease alone
    host: str
    machine: str
    space: str
    process: ProcessId
    driver: ProcessId | None
    since: str  # for people: wall clocks of two machines are never compared
    flock: bool  # whether a lock of the file system is held as well

    @classmethod
    def this(cls, *, flock: bool) -> Holder:
        """This process, with a new token."""
        since = time.strftime("%Y-%m-%d %H:%M:%S %Z")
        here = ProcessId.of(os.getpid())
        return cls(secrets.token_hex(8), platform.node(), machine(), process_space(), here, driver(), since, flock)

    @classmethod
    def parse(cls, line: str) -> Holder | None:
        """The holder in the first line of a lease; None if it is not whole."""
        try:
            content = json.loads(line)
            token, host, machine, space, since = (str(content[name]) for name in TEXTS)
            process, behind, flock = _process(content["process"]), content["driver"], content["flock"] is True
            return cls(token, host, machine, space, process, None if behind is None else _process(behind), since, flock)
        except (ValueError, TypeError, KeyError, RecursionError):
            return None

    @property
    def is_near(self) -> bool:
        """Whether its process number means something here."""
        return self.machine == machine() and self.space == process_space()

    @property
    def name(self) -> str:
        """Who it is and since when, for a message."""
        return f"process {self.process.pid} on {self.host}, since {self.since}"


def _process(content: dict[str, Any]) -> ProcessId:
    return ProcessId(int(content["pid"]), str(content["started"]))


@dataclass(frozen=True)
class Sight:
    """A lease as read at one moment: two sights that are equal show no sign of life between them."""

    text: str

    @classmethod
    def of(cls, path: Path) -> Sight | None:
        """The lease at a path; None if there is none."""
        with (
            suppress(FileNotFoundError),
            no_pipe(path).open("rb") as stream,
        ):  # network file systems ask their server anew
            return cls(stream.read(1 << 16).decode(errors="replace"))
        return None

    @property
    def _who(self) -> str:
        return self.text.partition("\n")[0]

    @property
    def holder(self) -> Holder | None:
        return Holder.parse(self._who)

    @property
    def patience(self) -> float:
        """Seconds without a change after which its holder counts as dead."""
        return SILENT_AFTER if self.text else SILENT_UNWRITTEN

    def same_holder(self, other: Sight | None) -> bool:
        """Whether the lease is that of the same holder at another moment."""
        return other is not None and self._who == other._who


class Lease:
    """A lease of this process, kept alive by a thread until it is released."""

    held: ClassVar[set[str]] = set()  # tokens of this process

    def __init__(self, path: Path, stream: FileIO, holder: Holder) -> None:
        self.path, self.holder = path, holder
        self._stream = stream
        self._over = threading.Event()
        self._guard = threading.Lock()
        self._beats = 0
        threading.Thread(target=self._live, name=f"lease {path.name}", daemon=True).start()

    @classmethod
    def create(cls, path: Path, *, flock: bool) -> Lease | None:
        """Make a lease; None if there is one already."""
        holder = Holder.this(flock=flock)
        cls.held.add(holder.token)  # before others can see it
        stream = None
        try:
            stream = _created(path, holder)
        finally:
            if stream is None:
                cls.held.discard(holder.token)
        return None if stream is None else cls(path, stream, holder)

    def confirm(self) -> None:
        """Raise unless this process still holds the lease: one that slept for minutes has lost it to another."""
        try:
            if self.is_ours() or self._made_again():
                return
            sight = Sight.of(self.path)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        by = f" by {sight.holder.name}" if sight is not None and sight.holder is not None else ""
        raise VitattackError(
            f"{self.path.with_suffix('')} was taken over{by}, while this process slept: run the same command again"
        )

    def release(self) -> None:
        """Remove the lease, if it is still that of this process."""
        if self.holder.process.pid != os.getpid():  # a fork of the holder
            return
        self._over.set()
        with self._guard:
            if self.holder.token not in self.held:
                return
            self._stream.close()
            with suppress(OSError):
                if self.is_ours():
                    self.path.unlink()
            self.held.discard(self.holder.token)  # not earlier, or another thread would take it over

    def is_ours(self) -> bool:
        """Whether the file is still the one that this process made."""
        sight = Sight.of(self.path)
        return sight is not None and sight.holder is not None and sight.holder.token == self.holder.token

    def _made_again(self) -> bool:
        """Put the lease back after somebody removed it; False if another process has made one."""
        stream = _created(self.path, self.holder)
        if stream is None:
            return False
        with self._guard:
            self._stream.close()
            self._stream = stream
        return True

    def _live(self) -> None:
        behind = len(_line(self.holder))
        while not self._over.wait(SECONDS_BETWEEN_BEATS):
            self._beats += 1
            with self._guard, suppress(OSError):  # a full disk: the next beat may succeed
                if not self._over.is_set():
                    self._stream.seek(behind)
                    _write(self._stream, _count(self._beats))


def take_over(path: Path, dead: Sight) -> None:
    """Move a dead lease out of the way; one that has meanwhile changed hands is put back."""
    aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    if not dead.same_holder(Sight.of(path)):
        return
    with suppress(FileNotFoundError):  # somebody else was faster
        path.rename(aside)
        if not dead.same_holder(Sight.of(aside)):
            _put_back(aside, path)
        aside.unlink()


def _put_back(aside: Path, path: Path) -> None:
    try:
        path.hardlink_to(aside)
    except FileExistsError:
        return
    except OSError:  # no hard links here
        if not path.exists():
            aside.rename(path)


def _created(path: Path, holder: Holder) -> FileIO | None:
    """A new lease file, open for its beats; None if there is one already."""
    try:
        stream = path.open("xb", buffering=0)
    except FileExistsError:
        return None
    try:
        _write(stream, _line(holder) + _count(0))
    except OSError:  # no room for its content
        stream.close()
        with suppress(OSError):
            path.unlink()
        raise
    return stream


def _line(holder: Holder) -> bytes:
    return (json.dumps(asdict(holder)) + "\n").encode()


def _count(beats: int) -> bytes:
    return f"{beats:012d}\n".encode()


def _write(stream: FileIO, content: bytes) -> None:
    """Write in place and make sure that other machines see it."""
    stream.write(content)
    os.fsync(stream.fileno())
