"""A record file in the hands of the one process that writes it.

At any time the file holds what this process has read from it and written to it, and nothing else: one that shrinks, grows
or is replaced behind its back is noticed before the next batch is written and before the records become a result.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from vitattack.core.errors import VitattackError
from vitattack.core.files import append_durably, cannot_write, no_pipe, replace_content
from vitattack.core.locks import lock_file
from vitattack.core.progress import current_listener
from vitattack.records.batch import Batch
from vitattack.records.record import SampleRecord
from vitattack.records.scan import Scan
from vitattack.records.sealed import place_aside

Key = tuple[int, int]  # pass and place in it


class RecordFile:
    """The batches of a file by pass and place, as on disk; the file is open and locked until `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.was_damaged = False  # whether anything was moved aside, with a word
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._stream = no_pipe(path).open("ab", buffering=0)
        except OSError as error:
            raise cannot_write(path.parent, error) from error
        try:
            self._lock = lock_file(self._stream, path)
        except BaseException:
            self._stream.close()
            raise
        self._beside = path.with_name(f".{path.name}.new")  # complete while the file itself is written anew
        self._batches: dict[Key, Batch] = {}
        self._size = self._crc = 0

    @property
    def batches(self) -> Iterable[Batch]:
        """The batches in the order of the file."""
        return self._batches.values()

    @property
    def extent(self) -> tuple[int, int]:
        """Size and checksum that the file must have."""
        return self._size, self._crc

    def get(self, key: Key) -> Batch | None:
        return self._batches.get(key)

    def read(self, scan: Callable[[bytes], Scan], fits: Callable[[Batch], bool]) -> None:
        """Take over the whole batches that belong to the job; move aside whatever is damaged, cut off a torn tail."""
        try:
            if self._beside.exists():  # of a process that was killed while it wrote the file anew
                self._fill(no_pipe(self._beside).read_bytes())
            content = self.path.read_bytes()
        except OSError as error:
            raise cannot_write(self.path, error) from error
        found, strange = scan(content), []
        for batch in found.batches:
            if not fits(batch) or self._batches.setdefault(batch.key, batch) != batch:
                strange.append(batch)
        self._size, self._crc = len(content), zlib.crc32(content)
        if found.damage or strange:
            lost = b"".join([*(each.content for each in found.damage), *(batch.encoded() for batch in strange)])
            self._set_aside(lost, ", ".join(map(str, found.damage[:3])) or "batches of other images")
        if found.damage or len(self._batches) < len(found.batches) or not found.is_current:
            self.rewrite([*self.batches])
        elif found.end < len(content):
            self._truncate(found.end)
            self._crc = zlib.crc32(content[: found.end])

    def append(self, batch: Batch) -> None:
        """Write a batch behind the others, in one call; it is on disk when this returns."""
        self._lock.confirm()
        self._confirm_place()
        for record in batch.records:
            _check(record)
        content = batch.encoded()
        append_durably(self._stream, self.path, content)
        self._batches[batch.key] = batch
        self._size, self._crc = self._size + len(content), zlib.crc32(content, self._crc)

    def drop(self, batches: Sequence[Batch], why: str) -> None:
        """Move aside batches that are intact and still none of this job."""
        if batches:
            self._set_aside(b"".join(batch.encoded() for batch in batches), why)
            self.rewrite([batch for batch in self.batches if batch not in batches])

    def settle(self) -> None:
        """Put the batches into the order of an uninterrupted run, if they are not in it."""
        if [*self._batches] != sorted(self._batches):
            self.rewrite([self._batches[key] for key in sorted(self._batches)])

    def rewrite(self, batches: Iterable[Batch]) -> None:
        """Replace the content by these batches; a kill at any moment loses none of them."""
        self._batches = {batch.key: batch for batch in batches}
        whole = b"".join(batch.encoded() for batch in self.batches)
        self._lock.confirm()
        try:
            replace_content(self._beside, whole)
            self._fill(whole)
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def clear(self) -> None:
        """Forget everything."""
        self._truncate(0)
        self._beside.unlink(missing_ok=True)
        self._batches, self._crc = {}, 0

    def confirm(self) -> None:
        """Raise if the file does not hold, byte by byte, what was read and written."""
        self._confirm_place()
        content = self.path.read_bytes()
        if (len(content), zlib.crc32(content)) != self.extent:
            raise self._changed()

    def close(self) -> None:
        self._lock.release()
        self._stream.close()

    def _fill(self, whole: bytes) -> None:
        self._truncate(0)
        append_durably(self._stream, self.path, whole)
        self._beside.unlink()
        self._size, self._crc = len(whole), zlib.crc32(whole)

    def _truncate(self, end: int) -> None:
        try:
            self._stream.truncate(end)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self._size = end

    def _confirm_place(self) -> None:
        """Raise if another file is in the place of the open one, or if it has another size."""
        with suppress(OSError):
            mine, there = os.fstat(self._stream.fileno()), self.path.stat()
            if os.path.samestat(mine, there) and mine.st_size == self._size:
                return
        raise self._changed()

    def _changed(self) -> VitattackError:
        return VitattackError(
            f"{self.path} was changed by something else while this run was writing it: run the same command again, "
            "which keeps what is whole and computes the rest"
        )

    def _set_aside(self, lost: bytes, what: str) -> None:
        self.was_damaged = True
        place = place_aside(self.path)
        try:
            replace_content(place, lost)
        except OSError as error:
            raise cannot_write(place, error) from error
        current_listener().warn(
            f"{self.path} is damaged ({what}): moved that to {place.name}, its samples are run again"
        )


def _check(record: SampleRecord) -> None:
    """Refuse what could not be read back, such as evidence of a plug-in that is no number."""
    try:
        SampleRecord.of(vars(record))
    except ValueError as error:
        raise VitattackError(f"the attack gave image {record.index} a record that cannot be stored: {error}") from error
