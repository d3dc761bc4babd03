"""Where vitattack keeps what it fetched, whether it may fetch at all, and how a file gets there whole."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from vitattack.core.errors import UsageError, VitattackError

SECONDS_BEFORE_WAITING_IS_SAID = 0.5


def home() -> Path:
    """VITATTACK_HOME, or `vitattack` in the platform's cache folder; nothing is created."""
    given = os.environ.get("VITATTACK_HOME")
    if given:
        try:
            path = Path(given).expanduser().absolute()
            path.exists()
        except (OSError, RuntimeError, ValueError) as error:  # a name too long, or a user who is none
            raise UsageError(
                f"VITATTACK_HOME '{printable(given)}' is no path here ({error.args[-1]}): correct it"
            ) from error
        return path
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "vitattack"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "vitattack" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitattack"


def offline() -> str | None:
    """The variable that forbids the network, if one does."""
    for name in ("VITATTACK_OFFLINE", "HF_HUB_OFFLINE"):
        if os.environ.get(name, "").lower() not in ("", "0", "false", "no", "off"):
            return name
    return None


def plain(name: str) -> str:
    """A name as one file name: nothing in it can leave a folder, and two names never share one."""
    if re.fullmatch(r"[a-z0-9][a-z0-9_.-]{0,79}", name):  # as it is, also where file names ignore case
        return name
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip(".-")[:80]
    return f"{readable}+{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def printable(text: str, length: int = 100) -> str:
    """Words from outside, fit for a terminal: one line and no control characters."""
    words = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return words if len(words) <= length else words[: length - 3] + "..."


def is_file(text: str) -> bool:
    """Whether a word from outside names a file; one that no file can have is none."""
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


def folder(*parts: str) -> Path:
    """A folder below the home, made if need be."""
    path = home().joinpath(*parts)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write the cache '{home()}' ({error.strerror}): set VITATTACK_HOME") from error
    return path


def file_sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def locked(name: str, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Only one process at a time is inside; the lock of one that died is free again."""
    try:
        lock = FileLock(folder("locks") / (plain(name) + ".lock"))
        try:
            lock.acquire(timeout=SECONDS_BEFORE_WAITING_IS_SAID)
        except Timeout:
            waiting()
            lock.acquire()
    except OSError as error:
        raise UsageError(f"cannot write the cache '{home()}' ({error.strerror}): set VITATTACK_HOME") from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A file to write beside `path`, which takes its place when the block ends well and vanishes otherwise.

    For the holder of a lock: what a killed process left is written over.
    """
    beside = path.with_name(f".{path.name}.tmp")
    try:
        try:
            yield beside
            with beside.open("rb+") as stream:
                os.fsync(stream.fileno())
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise VitattackError(
            f"cannot write '{path}' ({error.strerror or error}): make room or set VITATTACK_HOME"
        ) from error
