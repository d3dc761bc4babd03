"""One folder per job key: `job.json`, append-only `samples.jsonl`, `result.json`. Complete batches survive any crash.

Batches are written in one call and flushed to disk. On opening, the remains of an incomplete batch are cut off, so that
a resumed run ends with the same file as an uninterrupted one. Each shard has a file of its own; the last one to finish
merges them in the order of the job. Later passes over survivors are appended to the merged file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from io import FileIO
from pathlib import Path
from typing import Any

from vitattack.core.files import (
    append_durably,
    append_line,
    cannot_write,
    json_text,
    read_json,
    write_atomically,
)
from vitattack.core.locks import FileLock, Locked, lock_file
from vitattack.records.batch import BatchNotes
from vitattack.records.job import Job
from vitattack.records.record import SampleRecord

Batches = Sequence[tuple[int, ...]]


def finished(root: Path, job: Job) -> dict[str, Any] | None:
    """The result of a job that is complete, if it is in the store."""
    content = read_json(root / job.folder / "result.json")
    return content if content and {"seconds", "doubts", "provenance"} <= content.keys() else None


class Sink:
    """The open record file of one shard of a job; a lock keeps a second process out."""

    def __init__(
        self, root: Path, job: Job, batches: Batches, shard: tuple[int, int] = (0, 1), *, fresh: bool = False
    ) -> None:
        self.folder = root / job.folder
        self._all = list(batches)
        self._whole: FileIO | None = None
        self._whole_lock: FileLock | None = None
        self.has_later_passes = False  # whether the file had records behind the first pass when opened
        self._merged: list[SampleRecord] | None = None
        self._shard = shard
        self._mine = self._part(shard[0])
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._path = self._file_of(shard[0])
            self._stream = self._path.open("ab", buffering=0)
        except OSError as error:
            raise cannot_write(self.folder, error) from error
        try:
            self._lock = lock_file(self._stream, self._path)
        except BaseException:
            self._stream.close()
            raise
        try:
            if not (self.folder / "job.json").exists():
                write_atomically(self.folder / "job.json", json_text({"schema": 1, "key": job.key, **asdict(job)}))
            if fresh:
                self._forget_everything()
            self.records = self._recover()
        except BaseException:
            self._close()
            raise

    def _part(self, number: int) -> list[tuple[int, ...]]:
        """The batches of a shard: a contiguous run of them."""
        first, last = (round(len(self._all) * k / self._shard[1]) for k in (number, number + 1))
        return self._all[first:last]

    def _forget_everything(self) -> None:
        """Delete the shard's own files and the merged ones, under the lock: other processes may be writing their shards."""
        if self._shard[1] > 1:
            self._forget_whole()
        self._stream.truncate(0)
        for name in (self._events, "result.json", *(["learned.json"] if self._shard[1] == 1 else [])):
            (self.folder / name).unlink(missing_ok=True)

    def _forget_whole(self) -> None:
        """Empty the merged file with its later passes, which equal records would otherwise keep."""
        with suppress(FileNotFoundError), self.path.open("r+b") as whole:
            lock = lock_file(whole, self.path)
            whole.truncate(0)
            lock.release()

    @property
    def _events(self) -> str:
        return self._path.name.replace("samples", "events", 1)

    def _file_of(self, number: int) -> Path:
        count = self._shard[1]
        return self.folder / ("samples.jsonl" if count == 1 else f"samples.shard-{number}-of-{count}.jsonl")

    def _recover(self) -> list[SampleRecord]:
        """Records of the complete batches; the file is cut behind the last of them."""
        records, end = whole_batches(self._path, self._mine)
        if self._shard[1] > 1 or len(records) < self.total:
            self._stream.truncate(end)  # behind a complete first pass there may be later ones
        else:
            self.has_later_passes = self._path.stat().st_size > end
        return records

    @property
    def todo(self) -> list[tuple[int, ...]]:
        """The batches still to be run."""
        done = len(self.records)
        for at, batch in enumerate(self._mine):
            if done <= 0:
                return self._mine[at:]
            done -= len(batch)
        return []

    @property
    def total(self) -> int:
        return sum(map(len, self._mine))

    def write(self, records: Sequence[SampleRecord], notes: BatchNotes = BatchNotes()) -> None:
        """Write one batch in one call, with what was noticed about it; it is on disk when this returns."""
        self._lock.confirm()
        append_durably(self._stream, self._path, _lines(records))
        self.records.extend(records)
        self._note_batch(notes)

    def _note_batch(self, notes: BatchNotes) -> None:
        if notes != BatchNotes():
            self.note({"doubts": list(notes.doubts), "backoffs": notes.backoffs, "nudged": notes.nudged})

    @property
    def notes(self) -> BatchNotes:
        """The notes of all batches of this job, of all shards and passes."""
        return BatchNotes.of_events(self.events())

    def note(self, event: dict[str, Any]) -> None:
        """Append an event, such as the cost of a batch, which differs from run to run and is no part of the records."""
        path = self.folder / self._events
        try:
            append_line(path, json.dumps(event))
        except OSError as error:
            raise cannot_write(path, error) from error

    def events(self) -> list[dict[str, Any]]:
        """The events of all sessions and shards of this job; an incomplete last line is skipped."""
        files = [self._file_of(number).name.replace("samples", "events", 1) for number in range(self._shard[1])]
        found = []
        for path in (self.folder / name for name in files):
            for line in path.read_text().splitlines() if path.exists() else ():
                with suppress(ValueError):
                    found.append(json.loads(line))
        return found

    def learned(self) -> dict[str, Any] | None:
        """What the attack learned before its first batch, in this session or another."""
        return read_json(self.folder / "learned.json")

    def keep_learned(self, content: dict[str, Any]) -> None:
        write_atomically(self.folder / "learned.json", json_text(content))

    @property
    def path(self) -> Path:
        """The file of all records of the job, complete once `merge` returns True."""
        return self.folder / "samples.jsonl"

    @property
    def first_pass(self) -> Sequence[SampleRecord]:
        """The records of all samples, before any later pass; of shards, once they are merged."""
        return self.records if self._merged is None else self._merged

    @property
    def batches(self) -> Batches:
        """The batches of the first pass over all samples, in all shards."""
        return self._all

    def merge(self) -> bool:
        """Merge the records of all shards in order; False while others still write theirs or finish the job.

        The file stays locked until this sink is closed, so that later passes have one writer.
        """
        if self._shard[1] == 1:
            return True
        everything: list[SampleRecord] = []
        for number in range(self._shard[1]):
            part = self._part(number)
            records, _ = whole_batches(self._file_of(number), part)
            if len(records) < sum(map(len, part)):
                return False
            everything.extend(records)
        lines = _lines(everything)
        try:
            whole = self.path.open("ab", buffering=0)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        try:
            self._whole_lock = lock_file(whole, self.path)
        except Locked:
            whole.close()
            return False
        self._whole = whole
        present = self.path.read_bytes()
        if not present.startswith(lines):
            whole.truncate(0)
            append_durably(whole, self.path, lines)
        self.has_later_passes = present.startswith(lines) and len(present) > len(lines)
        self._merged = everything
        return True

    def append(self, records: Sequence[SampleRecord], notes: BatchNotes = BatchNotes()) -> None:
        """Append a batch of a later pass; it is on disk when this returns."""
        (self._whole_lock or self._lock).confirm()
        append_durably(self._whole or self._stream, self.path, _lines(records))
        self._note_batch(notes)

    def cut(self, end: int) -> None:
        """Drop what a crash left behind the last complete batch."""
        (self._whole or self._stream).truncate(end)

    def __enter__(self) -> Sink:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        for lock in (self._whole_lock, self._lock):
            if lock is not None:
                lock.release()
        for stream in (self._stream, self._whole):
            if stream is not None:
                stream.close()


def _lines(records: Sequence[SampleRecord]) -> bytes:
    return "".join(record.line() + "\n" for record in records).encode()


def whole_batches(path: Path, batches: Batches, end: int = 0) -> tuple[list[SampleRecord], int]:
    """The records of the leading complete batches of a file from the byte `end` on, and the byte where they end."""
    records: list[SampleRecord] = []
    if not path.exists():
        return records, end
    with path.open("rb") as stream:
        stream.seek(end)
        for batch in batches:
            lines = [stream.readline() for _ in batch]
            try:
                found = [SampleRecord.parse(line) for line in lines if line.endswith(b"\n")]
            except (ValueError, TypeError):
                break
            if tuple(record.index for record in found) != batch:
                break
            records.extend(found)
            end += sum(map(len, lines))
    return records, end
