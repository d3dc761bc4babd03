"""Parts of a long measurement on disk, so that a killed run goes on where it was: a line of JSON each, with its checksum."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from vitattack.analyses.findings import plain
from vitattack.core.files import append_durably, cannot_write, no_pipe
from vitattack.core.locks import lock_file
from vitattack.core.progress import in_stage
from vitattack.records.sealed import Damaged, opened_line, sealed_line

FOLDER = ".analyses"  # of a store


def kept_parts(
    path: Path, count: int, make: Callable[[int], dict[str, Any]], what: str, *, fresh: bool = False
) -> list[dict[str, Any]]:
    """All parts of a measurement, in order: those that are stored whole, and the others made and stored one by one.

    A part is plain data and depends on its number alone. Everything from the first damaged line on is made again.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = path.open("ab+", buffering=0)
    except OSError as error:
        raise cannot_write(path, error) from error
    with stream:
        lock = lock_file(stream, path, "at work on the same analysis")
        try:
            parts = [] if fresh else _stored(path, count)
            stream.truncate(sum(len(_line(at, part)) for at, part in enumerate(parts)))
            for at in in_stage(what, range(count)):
                if at >= len(parts):
                    part = plain(make(at))
                    lock.confirm()
                    append_durably(stream, path, _line(at, part))
                    parts.append(part)
            return parts
        finally:
            lock.release()


def _line(number: int, part: dict[str, Any]) -> bytes:
    return sealed_line({"part": number, "found": part})


def _stored(path: Path, count: int) -> list[dict[str, Any]]:
    """The parts before the first line that is not as it was written."""
    parts: list[dict[str, Any]] = []
    for line in no_pipe(path).read_bytes().splitlines(keepends=True)[:count]:
        try:
            content = opened_line(line)
        except Damaged:
            break
        found = content.get("found")
        if content.get("part") != len(parts) or not isinstance(found, dict) or _line(len(parts), found) != line:
            break
        parts.append(found)
    return parts
