"""Where vitattack keeps what it fetched, whether it may fetch at all, and how a file gets there whole."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from vitattack.core.errors import UsageError, VitattackError
from vitattack.core.words import plain, printable

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


def write_atomically(path: Path, content: str) -> None:
    """All of it or nothing, even across a crash."""
    partial = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}")  # machines may share the folder
    try:
        with partial.open("w") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise cannot_write(path, error) from error


def is_full(error: OSError) -> bool:
    """Whether a write failed for want of room."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def cannot_write(path: Path, error: OSError) -> VitattackError:
    reason = error.strerror or type(error).__name__
    if is_full(error):
        return VitattackError(f"cannot write {path} ({reason}): free some space and run the same command to go on")
    return UsageError(f"cannot write {path} ({reason}): give another folder with --out")


def dump(content: Any) -> str:
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


def read_json(path: Path) -> dict[str, Any] | None:
    """An object that was written atomically, if it was."""
    try:
        content = json.loads(path.read_text())
        return content if isinstance(content, dict) else None
    except (OSError, ValueError):
        return None
