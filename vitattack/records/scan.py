"""Reading of record files: whole batches, whatever is damaged, and the torn tail that a kill may leave."""

from __future__ import annotations

import json
import zlib
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from vitattack.core.words import printable
from vitattack.records.batch import CLOSING, Batch
from vitattack.records.record import SampleRecord
from vitattack.records.sealed import END_OF_LINE, SCHEMA, NewerSchema


class Damage(NamedTuple):
    """Bytes of a file that hold no whole batch, and where they begin."""

    start: int
    content: bytes

    def __str__(self) -> str:
        return f"bytes {self.start} to {self.start + len(self.content)}"


class Scan(NamedTuple):
    """What a record file holds: whole batches in the order of the file, damage, and where a torn tail begins."""

    batches: tuple[Batch, ...]
    damage: tuple[Damage, ...] = ()
    end: int = 0  # of everything but a torn tail
    is_current: bool = True  # whether the file is of the present schema


def scan(path: Path, content: bytes) -> Scan:
    """Take a record file apart; raises NewerSchema for batches that are intact and not of this version."""
    batches, damage, start = [], [], 0
    for found in END_OF_LINE.finditer(content):
        crc, end = int(found[1], 16), found.end() + 1
        if end > len(content):
            break  # of the last line only its end is missing
        at = start
        if zlib.crc32(memoryview(content)[start : found.start()]) != crc:
            at = _start_of_batch(content, start, found.start(), crc)
        if content[end - 1 : end] != b"\n":
            at = end
        if at > start:
            damage.append(Damage(start, content[start:at]))
        if at < end:
            batches.append(_decoded(path, content[at : found.start()]))
        start = end
    tail = content[start:]
    if tail and not _is_torn(tail):
        damage.append(Damage(start, tail))
        start = len(content)
    return Scan(tuple(batches), tuple(damage), start)


def _start_of_batch(content: bytes, start: int, end: int, crc: int) -> int:
    """Where a batch begins that has something else before it; behind its own end if it is damaged itself."""
    closing = content.rfind(CLOSING, start, end)
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        at = closing
        for _ in range(min(json.loads(content[closing:end] + b"}")["rows"], len(content))):
            at = content.rfind(b"\n", start, max(start, at - 1)) + 1 or start
        if start < at and zlib.crc32(memoryview(content)[at:end]) == crc:
            return at
    return end + len(b',"crc":"01234567"}\n')


def _decoded(path: Path, content: bytes) -> Batch:
    """The batch in bytes whose checksum fits."""
    lines, _, closing = content.rpartition(CLOSING)
    try:
        schema = json.loads(CLOSING + closing + b"}")["schema"]
        if schema == SCHEMA:
            return Batch.decoded(lines, CLOSING + closing + b"}")
        why = f"of schema {printable(str(schema), 20)}, this version knows {SCHEMA}"
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        why = f"of another version ({printable(str(error))})"
    raise NewerSchema(path, f"holds batches {why}")


def _is_torn(tail: bytes) -> bool:
    """Whether bytes are the beginning of a batch: whole records, and at most a part of a line."""
    try:
        return all(SampleRecord.parse(line) for line in tail.split(b"\n")[:-1])
    except ValueError:
        return False
