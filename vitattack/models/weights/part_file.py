"""The part of a file that a download has so far, and the note beside it that says what it is a part of."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from vitattack.core.files import no_pipe

CHUNK = 1 << 20
UNNOTED = 8 << 20  # bytes after which the checksum of a part is noted: what a kill costs


class PartFile:
    """A file with the first bytes of a download; its note vouches for some of them by their checksum.

    `validator` is what the host calls this version of its file, empty if it did not say.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.note_path = path.with_name(path.name + ".json")

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.is_file() else 0

    @property
    def validator(self) -> str:
        return _validator(self._read_note()) if self.size else ""

    def cut_to_noted(self) -> None:
        """Keep the bytes that the note vouches for; none if the host could not tell whether its file is still the same."""
        note = self._read_note()
        size = note.get("bytes")
        if (
            _validator(note)
            and type(size) is int
            and 0 < size <= self.size
            and _checksum(self.path, size) == note.get("crc")
        ):
            with self.path.open("r+b") as stream:
                stream.truncate(size)
        else:
            self.remove()

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def finish(self) -> None:
        """Remove the note of a file that is whole."""
        self.note_path.unlink(missing_ok=True)

    def _read_note(self) -> dict[str, Any]:
        try:
            content = json.loads(no_pipe(self.note_path).read_text())
        except (OSError, ValueError, RecursionError):
            return {}
        return content if isinstance(content, dict) else {}


class PartWriter:
    """Appends to the first `done` bytes of a part, and notes now and then how many are there."""

    def __init__(self, part: PartFile, done: int, validator: str) -> None:
        self.part, self.done, self.validator = part, done, validator
        self._crc, self._noted = _checksum(part.path, done), done

    def __enter__(self) -> PartWriter:
        self._write_note()
        self._stream = self.part.path.open("ab" if self.done else "wb")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()
        self._write_note()

    def write(self, chunk: bytes) -> None:
        self._stream.write(chunk)
        self.done, self._crc = self.done + len(chunk), zlib.crc32(chunk, self._crc)
        if self.done - self._noted >= UNNOTED:
            self._stream.flush()
            self._write_note()

    def empty(self) -> None:
        """Throw away what was written and what was there before."""
        self._stream.truncate(0)
        self.done, self._crc = 0, 0

    def _write_note(self) -> None:
        self.part.note_path.write_text(json.dumps({"validator": self.validator, "bytes": self.done, "crc": self._crc}))
        self._noted = self.done


def _validator(note: Mapping[str, Any]) -> str:
    validator = note.get("validator")
    return validator if isinstance(validator, str) else ""


def _checksum(path: Path, size: int) -> int:
    """The checksum of the first bytes of a file."""
    crc = 0
    if size:
        with path.open("rb") as stream:
            while size and (chunk := stream.read(min(size, CHUNK))):
                size, crc = size - len(chunk), zlib.crc32(chunk, crc)
    return crc
