"""Finished jobs read from the store without their attack; damaged or unfinished ones count as missing."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitattack.core.errors import VitattackError
from vitattack.core.files import no_pipe, write_atomically
from vitattack.core.versions import other_versions
from vitattack.records.job import Job
from vitattack.records.record import SampleRecord
from vitattack.records.report_section import Section
from vitattack.records.result import Result
from vitattack.records.scan import scan
from vitattack.records.schema_1 import is_of_schema_1, records_of_schema_1
from vitattack.records.sealed import load, load_intact, load_learned, sealed_text

WRONG_CONTENT = (
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    OSError,
    RecursionError,
    OverflowError,
    VitattackError,
)


def read_result(root: Path, name: str) -> Result | None:
    """The result in the folder `name` of a store, if its job is finished and nothing of it is damaged."""
    folder = root / name
    content = result_content(folder) if name == Path(name).name else None
    try:
        if content is None:
            return None
        job = Job(**content["job"])
        sections = tuple(Section.restored(data, content) for data in content["sections"])
        result = Result(
            job,
            last_records(folder),
            float(content["seconds"]),
            (*map(str, content["doubts"]), *other_versions(content["provenance"])),
            dict(content["provenance"]),
            folder,
            load_learned(folder),
            sections,
        )
        whole = job.folder == name and content["key"] == job.key and result.n == content["n"]
        return result if whole and result.robust.json() == content["robust"] else None
    except WRONG_CONTENT:
        return None


def keep_sections(folder: Path, sections: Sequence[Section]) -> None:
    """Add sections to the stored result of a finished job, with their doubts."""
    content = load(folder / "result.json")
    if content is None:
        raise _damaged(folder / "result.json")
    content["doubts"] = [*content["doubts"], *(doubt for section in sections for doubt in section.doubts)]
    content["sections"] = [*content["sections"], *(section.stored() for section in sections)]
    content |= {section.name: section.content for section in sections}
    write_atomically(folder / "result.json", sealed_text(content))


def result_content(folder: Path) -> dict[str, Any] | None:
    """The content of result.json, if the record file beside it is still the one it was computed from."""
    found = _intact(folder)
    return found[0] if found else None


def last_records(folder: Path) -> list[SampleRecord]:
    """The last record of every sample of a finished job; raises VitattackError if they were damaged since."""
    path, lines = folder / "samples.jsonl", _intact_lines(folder)
    if is_of_schema_1(lines):
        records = records_of_schema_1(path, lines)
    else:
        found = scan(path, lines)
        whole = not found.damage and found.end == len(lines)
        records = [record for batch in found.batches for record in batch.records] if whole else None
    if records is None:
        raise _damaged(path)
    return list({record.index: record for record in records}.values())


def _intact(folder: Path) -> tuple[dict[str, Any], bytes] | None:
    """The content of result.json and the bytes of the record file, if they belong together."""
    content = load_intact(folder / "result.json")
    try:
        if content is None:
            return None
        records = no_pipe(folder / "samples.jsonl").read_bytes()
        if content["schema"] == 1:
            whole = records.endswith(b"\n") and records.count(b"\n") == content.get("lines", content["n"])
        else:
            whole = content["samples"] == {"bytes": len(records), "crc": f"{zlib.crc32(records):08x}"}
        return (content, records) if whole else None
    except WRONG_CONTENT:
        return None


def _intact_lines(folder: Path) -> bytes:
    found = _intact(folder)
    if found is None:
        raise _damaged(folder / "samples.jsonl")
    return found[1]


def _damaged(path: Path) -> VitattackError:
    return VitattackError(f"{path} was damaged after its job had ended: run the same command again to repair it")
