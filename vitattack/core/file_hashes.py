"""Hashes of files, remembered in the cache folder while path, size, times and inode stay the same.

The time of the last change (ctime) is among them: unlike the modification time, nothing can set it back.

Each file has a note of its own, replaced atomically, so concurrent processes need no lock. As in git, a note is not
written for a file modified within the last two seconds: a later change might carry the same timestamp.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

from vitattack.core.errors import UsageError
from vitattack.core.files import cache_folder, cache_home, file_sha256, json_text, read_json, replace_content

SETTLED_AFTER_NS = 2_000_000_000
FOLDER = "file-hashes"


@dataclass(frozen=True)
class FileState:
    """What must stay the same for a file to count as unchanged."""

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> FileState:
        """The present state of a file; symbolic links are followed."""
        status = path.stat()
        return cls(os.path.realpath(path), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)

    def settled_at(self, now_ns: int) -> bool:
        """Whether the last change is long enough ago that another would show in the times."""
        return now_ns - max(self.mtime_ns, self.ctime_ns) > SETTLED_AFTER_NS


def remembered_sha256(path: Path) -> str:
    """The SHA-256 of a file's content, hashed again only if the file has changed since it was hashed last.

    To verify a download, or a file somebody may have tampered with, use `files.file_sha256`.
    """
    state = FileState.of(path)
    known = _noted(state)
    if known is not None:
        return known
    started = time.time_ns()
    digest = file_sha256(path)
    if state.settled_at(started) and FileState.of(path) == state:
        _note(state, digest)
    return digest


@dataclass(frozen=True)
class FileMark:
    """What tells whether a file changes while it is in use: its state, and its content if that was just modified."""

    state: FileState
    content: str

    @classmethod
    def of(cls, path: Path) -> FileMark:
        state = FileState.of(path)
        return cls(state, "" if state.settled_at(time.time_ns()) else file_sha256(path))

    def still_fits(self, path: Path) -> bool:
        """Whether the file is as it was."""
        try:
            return FileState.of(path) == self.state and (not self.content or file_sha256(path) == self.content)
        except OSError:
            return False


Marks = Mapping[Path, FileMark | None]  # None for a file that is missing


def marks_of(paths: Iterable[Path]) -> Marks:
    """The marks of files that are about to be used."""
    return {path.absolute(): _mark_of(path) for path in paths}


def still_fit(marks: Marks) -> bool:
    """Whether none of these files has changed, vanished or appeared since it was marked."""
    return all(not path.exists() if mark is None else mark.still_fits(path) for path, mark in marks.items())


def _mark_of(path: Path) -> FileMark | None:
    try:
        return FileMark.of(path)
    except FileNotFoundError:
        return None


def state_digest(paths: Iterable[Path]) -> str | None:
    """A hash that changes with any of these files, and any below these folders; None if one cannot be read.

    It is made of states, and of the content of files that have just been modified.
    """
    hasher = hashlib.sha256()
    try:
        for path in paths:
            for file in _files_below(path) if path.is_dir() else [path]:
                mark = FileMark.of(file)
                hasher.update(f"{astuple(mark.state)!r} {mark.content}\n".encode(errors="surrogateescape"))
    except OSError:
        return None
    return hasher.hexdigest()


def _files_below(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(place) / name for name in sorted(names))


def _note_file(state: FileState) -> Path:
    return cache_home() / FOLDER / f"{hashlib.sha256(os.fsencode(state.path)).hexdigest()[:32]}.json"


def _noted(state: FileState) -> str | None:
    """The hash in the note about a file in this state; a damaged note counts as none."""
    note = read_json(_note_file(state))
    digest = note.get("sha256") if note else None
    return digest if isinstance(digest, str) and note == _note_content(state, digest) else None


def _note_content(state: FileState, digest: str) -> dict[str, object]:
    """The content of a note; `check` tells a damaged one, whose hash would otherwise name another file."""
    check = hashlib.sha256(f"{astuple(state)!r} {digest}".encode(errors="surrogateescape")).hexdigest()
    return {"state": asdict(state), "sha256": digest, "check": check[:16]}


def _note(state: FileState, digest: str) -> None:
    with suppress(OSError, UsageError):  # a cache that cannot be written only costs time
        cache_folder(FOLDER)
        replace_content(_note_file(state), json_text(_note_content(state, digest)).encode())
