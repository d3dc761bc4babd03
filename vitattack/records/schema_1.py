"""Record files of schema 1: lines of records alone, whose batches follow from the job, with doubts among the events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from vitattack.records.batch import CLOSING, Batch, BatchNotes
from vitattack.records.record import SampleRecord, UnknownFields
from vitattack.records.scan import Damage, Scan
from vitattack.records.sealed import END_OF_LINE, NewerSchema

Batches = Sequence[tuple[int, ...]]


def is_of_schema_1(content: bytes) -> bool:
    """Whether a file looks like one of schema 1: nothing in it closes a batch."""
    return bool(content) and CLOSING not in content and END_OF_LINE.search(content) is None


def read_schema_1(path: Path, content: bytes, batches: Batches, first: int, size: int, notes: BatchNotes) -> Scan:
    """The batches of a file of schema 1: those of the job's first pass, numbered from `first`, and later ones of `size`.

    The notes of all go to the first one. Without a checksum, records are only as good as their fields are plausible.
    """
    lines = content.split(b"\n")[:-1]
    parsed = [_plausible(path, line) for line in lines]
    seen = Counter((record.pass_number, record.index) for record in parsed if record is not None)
    by_pass: dict[int, list[SampleRecord]] = {}
    for record in parsed:
        if record is not None and seen[record.pass_number, record.index] == 1:
            by_pass.setdefault(record.pass_number, []).append(record)
    by_index = {record.index: record for record in by_pass.pop(1, [])}
    found = [
        Batch(number, tuple(by_index[row] for row in rows))
        for number, rows in enumerate(batches, start=first)
        if by_index.keys() >= set(rows)
    ]
    for number, records in sorted(by_pass.items()):
        parts = [tuple(records[at : at + size]) for at in range(0, len(records), size)]
        found += [Batch(at, part, pass_number=number) for at, part in enumerate(parts)]
    if found:
        found[0] = Batch(found[0].number, found[0].records, notes, found[0].pass_number)
    kept = {(batch.pass_number, row) for batch in found for row in batch.rows}
    lost = [at for at, record in enumerate(parsed) if record is None or (record.pass_number, record.index) not in kept]
    is_torn = lost == [*range(len(lines) - len(lost), len(lines))] and None not in parsed
    damage = () if is_torn else (Damage(0, b"".join(lines[at] + b"\n" for at in lost)),)
    return Scan(tuple(found), damage, len(content), is_current=False)


def records_of_schema_1(path: Path, content: bytes) -> list[SampleRecord] | None:
    """The records of a finished file, of all passes; None if anything of it is damaged."""
    records = [_plausible(path, line) for line in content.split(b"\n")[:-1]]
    whole = [record for record in records if record is not None]
    return whole if len(whole) == len(records) and content.endswith(b"\n") else None


def notes_of_schema_1(events: Iterable[dict[str, Any]]) -> BatchNotes:
    """What the events of schema 1 say about batches, where it was kept then."""

    def count(event: dict[str, Any], name: str) -> int:
        value = event.get(name, 0)
        return value if type(value) is int and value > 0 else 0

    def doubts(event: dict[str, Any]) -> tuple[str, ...]:
        value = event.get("doubts")
        return tuple(map(str, value)) if isinstance(value, list) else ()

    return BatchNotes.together(
        BatchNotes(doubts(event), count(event, "backoffs"), count(event, "nudged")) for event in events
    )


def _plausible(path: Path, line: bytes) -> SampleRecord | None:
    """The record of a line, if its fields fit each other."""
    try:
        record = SampleRecord.parse(line)
    except UnknownFields as error:
        raise NewerSchema(path, f"holds records of another version ({error})") from error
    except ValueError:
        return None
    right = record.clean == record.label
    fits = {
        "clean_wrong": not right and record.clean >= 0,
        "robust": right and record.adversarial >= 0,
        "fooled": right and record.adversarial not in (-1, record.label),
        "invalid": right or record.clean < 0,
    }
    return record if fits[record.status] else None
