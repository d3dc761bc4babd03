"""A job's folder in two places: files travel to a worker that cannot see the store, and grow back batch by batch."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import IO, NamedTuple

from vitattack.core.errors import UsageError, VitattackError
from vitattack.core.files import file_sha256, json_text, try_lock, write_atomically
from vitattack.records.store import Locked

NAMES = re.compile(r"[a-z]+(\.shard-\d+-of-\d+)?\.jsonl?")


class OutOfStep(VitattackError):
    """A piece does not continue what is there."""


class Piece(NamedTuple):
    """The content of a file from a byte on; what stood behind it is gone. Without `start`, all of the file at once."""

    name: str
    start: int | None
    content: bytes


def files_of(shard: tuple[int, int]) -> tuple[str, str]:
    """The files that only this shard appends to."""
    part = "" if shard[1] == 1 else f".shard-{shard[0]}-of-{shard[1]}"
    return f"samples{part}.jsonl", f"events{part}.jsonl"


class Growth:
    """The worker's end: a job's folder filled with what its home in the store has, and what is new in it."""

    def __init__(self, folder: Path, home: Path, shard: tuple[int, int], seed: dict[str, bytes]) -> None:
        self._folder, self._home, self._growing = folder, home, files_of(shard)
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in seed.items():
            (folder / name).write_bytes(content)
        self.there = dict(seed)

    def pieces(self) -> list[Piece]:
        """Records before notes of what they cost, results last: where one is, everything else is."""
        found = []
        names = sorted(path.name for path in self._folder.iterdir() if NAMES.fullmatch(path.name))
        for name in sorted(names, key=lambda name: (name == "result.json", not name.startswith("samples"))):
            content, there = self._read(name), self.there.get(name)
            if content == there:
                continue
            start = (len(there) if there and content.startswith(there) else 0) if name in self._growing else None
            found.append(Piece(name, start, content[start or 0 :]))
            self.there[name] = content
        return found

    def _read(self, name: str) -> bytes:
        content = (self._folder / name).read_bytes()
        if name != "result.json":
            return content
        return json_text({**json.loads(content), "run": str(self._home)}).encode()  # where it will be


class Copy:
    """The driver's end: the folder of one shard of a job in the store, locked against other processes."""

    def __init__(self, folder: Path, shard: tuple[int, int], *, fresh: bool = False) -> None:
        self._folder, self._growing = folder, files_of(shard)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock: IO[bytes] = (folder / self._growing[0]).open("ab")
        except OSError as error:
            raise UsageError(f"cannot write {folder} ({error.strerror}): give another folder with --out") from error
        if not try_lock(self._lock):
            self._lock.close()
            raise Locked(f"another process is writing {self._lock.name}: wait for it, or give another --out")
        if fresh:
            self._lock.truncate(0)
            # of a shard the merged file, behind whose first pass later ones may stand
            other = "learned.json" if shard[1] == 1 else "samples.jsonl"
            for name in (self._growing[1], "result.json", other):
                (folder / name).unlink(missing_ok=True)

    def seed(self, *, alone: bool = False) -> dict[str, bytes]:
        """What is in the store, for a worker to go on from; `alone` without what other shards have made."""
        mine = (*self._growing, "learned.json")
        names = [path.name for path in self._folder.iterdir() if NAMES.fullmatch(path.name)]
        return {name: (self._folder / name).read_bytes() for name in names if name in mine or not alone}

    def apply(self, piece: Piece) -> None:
        """On the disk when this returns; a piece that does not fit to what is there is an error."""
        if not NAMES.fullmatch(piece.name):
            raise VitattackError(f"a worker sent a file named {piece.name[:80]!r}: it runs another version")
        path = self._folder / piece.name
        try:
            if piece.start is None:
                write_atomically(path, piece.content.decode())
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
                f"cannot write {path} ({error.strerror}): free some space and run the same command to go on"
            ) from error

    def whole(self, hashes: dict[str, str]) -> bool:
        """Whether every file is as its worker left it."""
        paths = [self._folder / name for name in hashes if NAMES.fullmatch(name)]
        return all(path.is_file() and file_sha256(path) == hashes[path.name] for path in paths)

    def close(self) -> None:
        self._lock.close()
