"""Finished results read from the store without their attack; damaged or unfinished ones count as missing."""

from __future__ import annotations

from pathlib import Path

from vitattack.core.files import read_json
from vitattack.core.versions import other_versions
from vitattack.records.job import Job
from vitattack.records.record import SampleRecord
from vitattack.records.report_section import Section
from vitattack.records.result import Result


def read_result(root: Path, name: str) -> Result | None:
    """The result in the folder `name` of a store, if it is complete."""
    folder = root / name
    content = read_json(folder / "result.json")
    if content is None or name != Path(name).name:
        return None
    try:
        job = Job(**content["job"])
        lines = (folder / "samples.jsonl").read_bytes()
        latest = {record.index: record for record in map(SampleRecord.parse, lines.splitlines())}
        sections = tuple(Section.restored(data, content) for data in content["sections"])
        whole = lines.endswith(b"\n") and lines.count(b"\n") == content["lines"] and len(latest) == content["n"]
        if job.folder != name or content["key"] != job.key or not whole:
            return None
        result = Result(
            job,
            list(latest.values()),
            float(content["seconds"]),
            (*content["doubts"], *other_versions(content["provenance"])),
            dict(content["provenance"]),
            folder,
            read_json(folder / "learned.json"),
            sections,
        )
        return result if result.robust.json() == content["robust"] else None
    except (KeyError, TypeError, ValueError, AttributeError, OSError, RecursionError):
        return None
