"""Files of vitattack: the cache folder, writes that survive a crash, and hashes.

Nothing else in the package writes a file that must be whole, or hashes one; `locks.py` beside it locks them.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any

from vitattack.core.errors import UsageError, VitattackError
from vitattack.core.progress import stage
from vitattack.core.words import printable


def cache_home() -> Path:
    """VITATTACK_HOME, or `vitattack` in the platform's cache folder; nothing is created."""
    given = os.environ.get("VITATTACK_HOME")
    if given:
        try:
            path = Path(given).expanduser().absolute()
            path.exists()
        except (OSError, RuntimeError, ValueError) as error:  # a name too long, or ~somebody unknown
            raise UsageError(
                f"VITATTACK_HOME '{printable(given)}' cannot be a path ({error.args[-1]}): correct it"
            ) from error
        return path
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "vitattack"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "vitattack" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitattack"


def cache_folder(*parts: str) -> Path:
    """A folder inside the cache, created if necessary."""
    path = cache_home().joinpath(*parts)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cache_not_writable(error) from error
    return path


def offline_variable() -> str | None:
    """The environment variable that forbids the network, if one is set."""
    for name in ("VITATTACK_OFFLINE", "HF_HUB_OFFLINE"):
        if os.environ.get(name, "").lower() not in ("", "0", "false", "no", "off"):
            return name
    return None


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's content, read now; `file_hashes.remembered_sha256` skips files that did not change."""
    with path.open("rb") as stream, stage(f"hashing {path.name}"):
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside `path` that takes its place when the block succeeds and is removed otherwise.

    For the holder of a lock: what a killed process left behind is overwritten.
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


def replace_content(path: Path, content: bytes | memoryview) -> None:
    """Replace a file's content whole or not at all, even across a crash; raises OSError and keeps the old content."""
    beside = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}.tmp")  # machines may share the folder
    try:
        with beside.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(path)
        _sync_folder(path.parent)
    except OSError:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, content: str) -> None:
    """Write a text file of a run whole or not at all, even across a crash."""
    try:
        replace_content(path, content.encode())
    except OSError as error:
        raise cannot_write(path, error) from error


def append_durably(stream: FileIO, path: Path, content: bytes) -> None:
    """Append all bytes or none, on disk when this returns; `stream` is `path` opened unbuffered for appending."""
    end = os.fstat(stream.fileno()).st_size
    try:
        while content:  # a nearly full disk takes a part and refuses the rest
            content = content[stream.write(content) :]
        os.fsync(stream.fileno())
    except OSError as error:
        with suppress(OSError):  # the next opening cuts a torn batch off
            stream.truncate(end)
        raise cannot_write(path, error) from error


def append_line(path: Path, line: str) -> None:
    """Append a line of notes; a crash may tear it, so readers skip what they cannot read. Raises OSError."""
    with no_pipe(path).open("a") as stream:
        stream.write(line + "\n")


def is_disk_full(error: OSError) -> bool:
    """Whether a write failed for lack of space."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def cannot_write(path: Path, error: OSError) -> VitattackError:
    """The error for a file of a run that could not be written, with the fix that fits its cause."""
    reason = error.strerror or type(error).__name__
    if is_disk_full(error):
        return VitattackError(f"cannot write {path} ({reason}): free some space and run the same command to resume")
    return UsageError(f"cannot write {path} ({reason}): give another folder with --out")


def json_text(content: Any) -> str:
    """JSON as it is stored: indented, keys sorted."""
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


def no_pipe(path: Path) -> Path:
    """The path of a file to be opened; raises OSError if a pipe or a device has its place, where opening never ends."""
    with suppress(FileNotFoundError):
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise OSError(errno.EINVAL, "not a file", str(path))
    return path


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file, or None where there is no readable one."""
    try:
        content = json.loads(no_pipe(path).read_text())
        return content if isinstance(content, dict) else None
    except (OSError, ValueError, RecursionError):  # RecursionError: brackets nested by the thousand
        return None


def _sync_folder(folder: Path) -> None:
    """Make a rename inside the folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def cache_not_writable(error: OSError) -> UsageError:
    """The error for a cache folder that cannot be written."""
    return UsageError(f"cannot write the cache '{cache_home()}' ({error.strerror}): set VITATTACK_HOME")
