"""Job folders kept in two places: sent to a worker that cannot see the store, and updated there batch by batch."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import IO, NamedTuple

from vitattack.core.errors import UsageError, VitattackError
from vitattack.core.files import file_sha256, replace_content
from vitattack.core.locks import lock_file
from vitattack.records.sealed import load_intact, sealed_text

FILE_NAMES = re.compile(r"[a-z]+(\.shard-\d+-of-\d+)?(\.damaged-\d+)?\.jsonl?")


class OutOfStep(VitattackError):
    """Raised for a piece that does not continue the file as stored."""


class FilePiece(NamedTuple):
    """Content of a file from a byte on, replacing what followed it; the whole file if `start` is None."""

    name: str
    start: int | None
    content: bytes


def appended_files(shard: tuple[int, int]) -> tuple[str, str]:
    """Files that only this shard appends to."""
    part = "" if shard[1] == 1 else f".shard-{shard[0]}-of-{shard[1]}"
    return f"samples{part}.jsonl", f"events{part}.jsonl"


class WorkerFolder:
    """Worker's end: a job folder that starts with the files of the store and reports its changes."""

    def __init__(self, folder: Path, home: Path, shard: tuple[int, int], files: dict[str, bytes]) -> None:
        self._folder, self._home, self._appended = folder, home, appended_files(shard)
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        self.sent = dict(files)

    def changes(self) -> list[FilePiece]:
        """Pieces changed since the last call: records, then their costs, then the result, which implies the others."""
        pieces = []
        names = sorted(path.name for path in self._folder.iterdir() if FILE_NAMES.fullmatch(path.name))
        for name in sorted(names, key=lambda name: (name == "result.json", not name.startswith("samples"))):
            content, sent = self._read(name), self.sent.get(name)
            if content == sent:
                continue
            start = (len(sent) if sent and content.startswith(sent) else 0) if name in self._appended else None
            pieces.append(FilePiece(name, start, content[start or 0 :]))
            self.sent[name] = content
        return pieces

    def _read(self, name: str) -> bytes:
        path = self._folder / name
        content = load_intact(path) if name == "result.json" else None
        if content is None:
            return path.read_bytes()
        return sealed_text({**content, "run": str(self._home)}).encode()  # the path that it will have


class StoreFolder:
    """Driver's end: the folder of one shard of a job in the store, locked against other processes."""

    def __init__(self, folder: Path, shard: tuple[int, int], *, fresh: bool = False) -> None:
        self._folder, self._appended = folder, appended_files(shard)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._stream: IO[bytes] = (folder / self._appended[0]).open("ab")
        except OSError as error:
            raise UsageError(f"cannot write {folder} ({error.strerror}): give another folder with --out") from error
        try:
            self._lock = lock_file(self._stream, folder / self._appended[0])
        except BaseException:
            self._stream.close()
            raise
        if fresh:
            self._stream.truncate(0)
            # a shard also drops the merged file, to which later passes may have been appended
            other = "learned.json" if shard[1] == 1 else "samples.jsonl"
            for name in (self._appended[1], "result.json", other):
                (folder / name).unlink(missing_ok=True)

    def files(self, *, own_only: bool = False) -> dict[str, bytes]:
        """Files for a worker to continue from; `own_only` leaves out those of other shards."""
        own = (*self._appended, "learned.json")
        names = [path.name for path in self._folder.iterdir() if FILE_NAMES.fullmatch(path.name)]
        return {name: (self._folder / name).read_bytes() for name in names if name in own or not own_only}

    def apply(self, piece: FilePiece) -> None:
        """Write a piece to disk; one that does not continue the file is refused."""
        if not FILE_NAMES.fullmatch(piece.name):
            raise VitattackError(f"a worker sent a file named {piece.name[:80]!r}: it runs another version")
        path = self._folder / piece.name
        self._lock.confirm()
        try:
            if piece.start is None:
                replace_content(path, piece.content)
                return
            with path.open("r+b" if path.exists() else "w+b") as stream:
                if stream.seek(0, os.SEEK_END) < piece.start:
                    raise OutOfStep(f"a part of {path} was lost on its way")
                stream.truncate(piece.start)
                stream.seek(piece.start)
                stream.write(piece.content)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise VitattackError(
                f"cannot write {path} ({error.strerror}): free some space and run the same command to resume"
            ) from error

    def matches(self, hashes: dict[str, str]) -> bool:
        """Whether every file is as its worker left it."""
        paths = [self._folder / name for name in hashes if FILE_NAMES.fullmatch(name)]
        return all(path.is_file() and file_sha256(path) == hashes[path.name] for path in paths)

    def close(self) -> None:
        """Release the lock."""
        self._lock.release()
        self._stream.close()
