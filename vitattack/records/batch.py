"""Batches: records that are written at once, with what was noticed while they were made, and their bytes in a file.

A batch is a line per record and one that closes it:

    {"batch":0,"pass":1,"rows":64,"schema":2,"doubts":[],"backoffs":0,"nudged":0,"crc":"89abcdef"}

`batch` is its place among the batches of its pass, and the checksum covers all of its lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from vitattack.records.record import SampleRecord
from vitattack.records.sealed import SCHEMA, sealed_line

CLOSING = b'{"batch":'
FIELDS = {"batch": int, "pass": int, "rows": int, "schema": int, "doubts": list, "backoffs": int, "nudged": int}


@dataclass(frozen=True)
class BatchNotes:
    """Observations about one batch that belong to its records: they are stored with them, in the same write."""

    doubts: tuple[str, ...] = ()
    backoffs: int = 0  # halvings for lack of memory
    nudged: int = 0  # images that lay outside [0,1] by rounding

    @classmethod
    def together(cls, several: Iterable[BatchNotes]) -> BatchNotes:
        """The notes of several batches as one, every doubt once."""
        parts = list(several)
        doubts = dict.fromkeys(doubt for part in parts for doubt in part.doubts)
        return cls(tuple(doubts), sum(part.backoffs for part in parts), sum(part.nudged for part in parts))


@dataclass(frozen=True)
class Batch:
    """Records that were made and are written together."""

    number: int  # its place among the batches of its pass, over all shards of the job
    records: tuple[SampleRecord, ...]
    notes: BatchNotes = BatchNotes()
    pass_number: int = 1

    @property
    def key(self) -> tuple[int, int]:
        """The pass and the place in it, by which a finished file is in order."""
        return self.pass_number, self.number

    @cached_property
    def rows(self) -> tuple[int, ...]:
        return tuple([record.index for record in self.records])

    def encoded(self) -> bytes:
        """The lines of the batch."""
        lines = "".join([record.line() + "\n" for record in self.records]).encode()
        notes = self.notes
        closing: dict[str, Any] = {"batch": self.number, "pass": self.pass_number, "rows": len(self.records)}
        closing |= {"schema": SCHEMA, "doubts": notes.doubts, "backoffs": notes.backoffs, "nudged": notes.nudged}
        return lines + sealed_line(closing, before=lines)

    @classmethod
    def decoded(cls, lines: bytes, closing: bytes) -> Batch:
        """The batch in lines whose checksum fits, of `SCHEMA`; raises ValueError if another version wrote them."""
        end = json.loads(closing)
        if end.keys() != FIELDS.keys() or any(type(end[name]) is not kind for name, kind in FIELDS.items()):
            raise ValueError("a batch does not end as it should")
        contents = json.loads(b"[%s]" % lines[:-1].replace(b"\n", b","))
        records = tuple(map(SampleRecord.of, contents))
        if len(records) != end["rows"] or any(record.pass_number != end["pass"] for record in records):
            raise ValueError("a batch does not hold what its last line says")
        notes = BatchNotes(tuple(map(str, end["doubts"])), end["backoffs"], end["nudged"])
        return cls(end["batch"], records, notes, end["pass"])
