"""One folder per job key: `job.json`, append-only `samples.jsonl`, `events.jsonl`, `result.json`.

Complete batches survive any crash. On opening, the remains of an incomplete batch are cut off and damaged ones are moved
aside, to be run again, so that a resumed run ends with the same file as an uninterrupted one. Each shard has a file of
its own; the last one to finish merges them in the order of the job. Later passes over survivors are appended to the merged
file. Files of schema 1 are read, and written anew in the present one when their job goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vitattack.core.errors import VitattackError
from vitattack.core.files import cannot_write, json_text, no_pipe, write_atomically
from vitattack.core.locks import Locked
from vitattack.core.progress import current_listener
from vitattack.records.batch import Batch, BatchNotes
from vitattack.records.events import Event, EventLog
from vitattack.records.job import Job
from vitattack.records.record import SampleRecord
from vitattack.records.record_file import RecordFile
from vitattack.records.saved_examples import forget_examples
from vitattack.records.scan import Scan, scan
from vitattack.records.schema_1 import is_of_schema_1, notes_of_schema_1, read_schema_1
from vitattack.records.sealed import SCHEMA, Damaged, load, load_intact, load_learned, move_aside, sealed, sealed_text

Batches = Sequence[tuple[int, ...]]


class Sink:
    """The open record file of one shard of a job; a lock keeps a second process out."""

    def __init__(
        self, root: Path, job: Job, batches: Batches, shard: tuple[int, int] = (0, 1), *, fresh: bool = False
    ) -> None:
        self.folder = root / job.folder
        self._job, self._all, self._shard, self._fresh = job, list(batches), shard, fresh
        self._numbers = {rows: number for number, rows in enumerate(self._all)}
        self._whole: RecordFile | None = None
        damaged = {} if fresh else self._damaged_files()
        self._own = RecordFile(self._file_of(shard[0]))
        try:
            self._events = self._events_of(shard[0])
            for name, why in damaged.items():
                self._move_aside(name, why)
            self._may_be_of_schema_1 = self._stored_schema() != SCHEMA
            if fresh:
                self._forget_everything()
            else:
                self._own.read(lambda content: self._scan(shard[0], content), self._fits)
                self._tell_of_missing_end()
                self._events.repair(schema_1=self._may_be_of_schema_1)
            self._keep_job()
        except BaseException:
            self._own.close()
            raise

    def _tell_of_missing_end(self) -> None:
        """Say so if the file of a finished job ends too early, as that of a killed one does; its samples are run again."""
        content = load_intact(self.folder / "result.json")
        held = content.get("samples") if content and self._shard[1] == 1 else None
        if isinstance(held, dict) and self._own.extent[0] < held["bytes"] and not self._own.was_damaged:
            current_listener().warn(
                f"{self.path} lacks the end that it had when its job was finished: what is missing is run again"
            )

    def _damaged_files(self) -> dict[str, str]:
        """The damaged ones of the files that can be made again; refuses those of a later version, and touches nothing."""
        found = {}
        for name in ("job.json", "result.json"):
            try:
                content = load(self.folder / name)
                if name == "job.json" and content is not None and content != self._about(content["schema"]):
                    raise Damaged("it is about another job")
            except Damaged as error:
                found[name] = str(error)
        return found

    def _about(self, schema: int) -> dict[str, Any]:
        """The content of job.json."""
        return {"schema": schema, "key": self._job.key, **asdict(self._job)}

    def _stored_schema(self) -> int | None:
        content = load_intact(self.folder / "job.json")
        return None if content is None else int(content["schema"])

    def _keep_job(self) -> None:
        """Write job.json, unless a shard of schema 1 still waits for its own process."""
        others = [path for number in range(self._shard[1]) if (path := self._file_of(number)).exists()]
        if self._may_be_of_schema_1 and not any(is_of_schema_1(_bytes_of(path)) for path in others):
            write_atomically(self.folder / "job.json", sealed_text(self._about(SCHEMA)))

    def _move_aside(self, name: str, why: str) -> None:
        place = move_aside(self.folder / name)
        current_listener().warn(f"{self.folder / name} is damaged ({why}): moved it to {place.name}, it is made again")

    def _part(self, number: int) -> range:
        """The batches of a shard, by number: a contiguous run of them."""
        first, last = (round(len(self._all) * k / self._shard[1]) for k in (number, number + 1))
        return range(first, last)

    def _forget_everything(self) -> None:
        """Delete the shard's own files and the merged ones, under the lock: other processes may be writing their shards."""
        if self._shard[1] > 1:
            self._forget_whole()
        self._own.clear()
        forget_examples(self.folder, None if self._shard[1] == 1 else self._part(self._shard[0]))
        for name in (self._events.path.name, "result.json", *(["learned.json"] if self._shard[1] == 1 else [])):
            (self.folder / name).unlink(missing_ok=True)

    def _forget_whole(self) -> None:
        """Empty the merged file with its later passes, which equal records would otherwise keep."""
        if self.path.exists():
            with closing(RecordFile(self.path)) as whole:
                whole.clear()

    def _file_of(self, number: int) -> Path:
        count = self._shard[1]
        return self.folder / ("samples.jsonl" if count == 1 else f"samples.shard-{number}-of-{count}.jsonl")

    def _events_of(self, number: int) -> EventLog:
        return EventLog(self.folder / self._file_of(number).name.replace("samples", "events", 1))

    def _scan(self, number: int, content: bytes) -> Scan:
        """Take the file of a shard apart, whatever its schema."""
        path = self._file_of(number)
        if not (self._may_be_of_schema_1 and is_of_schema_1(content)):
            return scan(path, content)
        part, notes = self._part(number), notes_of_schema_1(self._events_of(number).read(schema_1=True))
        batches = [self._all[at] for at in part]
        return read_schema_1(path, content, batches, part.start, self._job.batch_size, notes)

    def _fits(self, batch: Batch) -> bool:
        """Whether a batch is one of this job; which samples later passes are for is known only when they are run."""
        return self._numbers.get(batch.rows) == batch.number if batch.pass_number == 1 else True

    @property
    def records(self) -> list[SampleRecord]:
        """The stored records of the shard's first pass, in the order of the job."""
        return [record for batch in self.stored_batches for record in batch.records]

    @property
    def stored_batches(self) -> list[Batch]:
        """The stored batches of the shard's first pass, in the order of the job."""
        batches = [self._own.get((1, number)) for number in self._part(self._shard[0])]
        return [batch for batch in batches if batch is not None]

    @property
    def todo(self) -> list[tuple[int, ...]]:
        """The batches still to be run."""
        return [self._all[at] for at in self._part(self._shard[0]) if self._own.get((1, at)) is None]

    @property
    def total(self) -> int:
        return sum(len(self._all[at]) for at in self._part(self._shard[0]))

    def numbered(self, records: Sequence[SampleRecord], notes: BatchNotes = BatchNotes()) -> Batch:
        """The batch of the first pass that these records are."""
        return Batch(self._numbers[tuple(record.index for record in records)], tuple(records), notes)

    def write(self, records: Sequence[SampleRecord], notes: BatchNotes = BatchNotes()) -> None:
        """Write one batch in one call, with what was noticed about it; it is on disk when this returns."""
        self._own.append(self.numbered(records, notes))

    def note(self, event: Event) -> None:
        """Append an event, such as the cost of a batch, which differs from run to run and is no part of the records."""
        self._events.add(event)

    def events(self) -> list[Event]:
        """The events of all sessions and shards of this job; damaged ones are skipped."""
        logs = [self._events_of(number) for number in range(self._shard[1])]
        return [event for log in logs for event in log.read(schema_1=self._may_be_of_schema_1)]

    def learned(self) -> dict[str, Any] | None:
        """What the attack learned before its first batch, in this session or another."""
        try:
            return load_learned(self.folder)
        except Damaged as error:
            self.forget_learned(str(error))
            return None

    def forget_learned(self, why: str) -> None:
        """Move aside what the attack learned, since it is damaged: it is learned again."""
        self._move_aside("learned.json", why)

    def keep_learned(self, content: dict[str, Any]) -> None:
        write_atomically(self.folder / "learned.json", json_text(sealed(content)))

    @property
    def path(self) -> Path:
        """The file of all records of the job, complete once `merge` returns True."""
        return self.folder / "samples.jsonl"

    @property
    def batches(self) -> Batches:
        """The batches of the first pass over all samples, in all shards."""
        return self._all

    @property
    def _merged(self) -> RecordFile:
        return self._whole or self._own

    @property
    def first_pass(self) -> list[SampleRecord]:
        """The records of all samples, before any later pass; of shards, once they are merged."""
        batches = [self._merged.get((1, number)) for number in range(len(self._all))]
        return [record for batch in batches if batch is not None for record in batch.records]

    @property
    def notes(self) -> BatchNotes:
        """The notes of all batches of the job; of shards, once they are merged."""
        return BatchNotes.together(batch.notes for batch in self._merged.batches)

    def merge(self) -> bool:
        """Merge the records of all shards in order; False while others still write theirs or finish the job.

        The file stays locked until this sink is closed, so that later passes have one writer.
        """
        if self._shard[1] == 1:
            return True
        parts: list[Batch] = []
        for number in range(self._shard[1]):
            found = self._of_shard(number)
            if found is None:
                return False
            parts.extend(found)
        try:
            self._whole = whole = RecordFile(self.path)
        except Locked:
            return False
        whole.read(
            lambda content: self._scan_merged(content, BatchNotes.together(part.notes for part in parts)), self._fits
        )
        later = [batch for batch in whole.batches if batch.pass_number > 1]
        present = [whole.get(part.key) for part in parts]
        if present != parts:
            same = all(had is None or had.records == part.records for had, part in zip(present, parts, strict=True))
            whole.rewrite([*parts, *(later if same else [])])
        return True

    def _of_shard(self, number: int) -> list[Batch] | None:
        """The batches of a shard, if it is complete."""
        batches: Iterable[Batch] = self._own.batches
        if number != self._shard[0]:
            path = self._file_of(number)
            found = self._scan(number, _bytes_of(path)) if path.exists() else Scan(())
            batches = found.batches
            if found.damage and not self._fresh:  # of an older run, which its own process is to forget
                current_listener().warn(
                    f"{path} is damaged: run shard {number}/{self._shard[1]} again, which repairs it"
                )
        by_number = {batch.number: batch for batch in batches if batch.pass_number == 1 and self._fits(batch)}
        part = self._part(number)
        return [by_number[at] for at in part] if by_number.keys() >= set(part) else None

    def _scan_merged(self, content: bytes, notes: BatchNotes) -> Scan:
        if not (self._may_be_of_schema_1 and is_of_schema_1(content)):
            return scan(self.path, content)
        return read_schema_1(self.path, content, self._all, 0, self._job.batch_size, notes)

    def later_pass(self, pass_number: int, batches: Batches) -> dict[int, Batch]:
        """The stored batches of a later pass by number; those for other samples are moved aside."""
        mine = [batch for batch in self._merged.batches if batch.pass_number == pass_number]
        found = {batch.number: batch for batch in mine if batch.rows in batches[batch.number : batch.number + 1]}
        self._merged.drop([batch for batch in mine if batch.number not in found], "a later pass for other samples")
        return found

    def end_passes(self, last: int) -> None:
        """Move aside batches of passes that do not follow from the records."""
        beyond = [batch for batch in self._merged.batches if batch.pass_number > last]
        self._merged.drop(beyond, "a later pass for other samples")

    def append(self, batch: Batch) -> None:
        """Append a batch of a later pass; it is on disk when this returns."""
        self._merged.append(batch)

    def confirm(self, records: Sequence[SampleRecord]) -> None:
        """Raise unless these are the records of exactly the samples of the job, and the file holds what they come from."""
        self._merged.settle()
        self._merged.confirm()
        if [record.index for record in records] != [row for rows in self._all for row in rows]:
            raise VitattackError(f"{self.path} lacks samples of its job: run the same command again")

    def keep_result(self, content: dict[str, Any]) -> None:
        """Write result.json, tied to the record file as it is now."""
        size, crc = self._merged.extent
        lines = sum(len(batch.records) + 1 for batch in self._merged.batches)
        samples = {"bytes": size, "crc": f"{crc:08x}"}
        content = {"schema": SCHEMA, "key": self._job.key, "job": asdict(self._job), **content}
        # not sorted: a stored result is printed in the same order as a fresh one
        write_atomically(self.folder / "result.json", sealed_text({**content, "lines": lines, "samples": samples}))

    def __enter__(self) -> Sink:
        return self

    def __exit__(self, *_: object) -> None:
        for file in (self._own, self._whole):
            if file is not None:
                file.close()


def _bytes_of(path: Path) -> bytes:
    """The records of another shard."""
    try:
        return no_pipe(path).read_bytes()
    except OSError as error:
        raise cannot_write(path, error) from error
