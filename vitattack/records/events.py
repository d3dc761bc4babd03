"""Events of a run: seconds, versions and the like, which differ from run to run and are no part of the records.

A line of JSON each, with a checksum. Nothing but the shown seconds and a doubt about mixed versions depends on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from vitattack.core.files import append_line, cannot_write, no_pipe, replace_content
from vitattack.core.progress import current_listener
from vitattack.records.sealed import Damaged, opened_line, parsed, place_aside, sealed_line

Event = dict[str, Any]


class EventLog:
    """The event file of one shard of a job."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, event: Event) -> None:
        try:
            append_line(self.path, sealed_line(event).decode().rstrip("\n"))
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def read(self, *, schema_1: bool = False) -> list[Event]:
        """All events that are whole."""
        return [event for _, event in self._lines(schema_1=schema_1) if event is not None]

    def repair(self, *, schema_1: bool = False) -> None:
        """Move damaged lines aside, cut off a torn one, and give lines of schema 1 their checksums."""
        lines = [*self._lines(schema_1=schema_1)]
        torn = [line for line, _ in lines[-1:] if not line.endswith(b"\n")]
        damaged = [line for line, event in lines if event is None and line not in torn]
        whole = [line for line, event in lines if event is not None]
        anew = [sealed_line({**event}) for _, event in lines if event is not None] if schema_1 else whole
        try:
            if damaged:
                place = place_aside(self.path)
                replace_content(place, b"".join(damaged))
                current_listener().warn(
                    f"{self.path} is damaged ({len(damaged)} of {len(lines)} lines): moved them to {place.name}, "
                    "the seconds they held are no longer counted"
                )
            if torn or anew != [line for line, _ in lines]:
                replace_content(self.path, b"".join(anew))
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def _lines(self, *, schema_1: bool) -> Iterator[tuple[bytes, Event | None]]:
        try:
            content = no_pipe(self.path).read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise cannot_write(self.path, error) from error
        *whole, rest = content.split(b"\n")
        for line in [*(line + b"\n" for line in whole), *([rest] if rest else [])]:
            event = _whole(line, schema_1=schema_1)
            yield line, None if event is None else {k: v for k, v in event.items() if KINDS.get(k, _anything)(v)}


def _whole(line: bytes, *, schema_1: bool) -> Event | None:
    """The event of a line; in schema 1 lines had no checksums."""
    if not line.endswith(b"\n"):
        return None
    with suppress(Damaged):
        return opened_line(line)
    with suppress(Damaged):
        if schema_1 and "crc" not in (event := parsed(line)):
            return event
    return None


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value < 1e15  # neither NaN nor more than floats hold


def _are_versions(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(each, str | None) for each in value.values())


def _is_digest(value: Any) -> bool:
    return isinstance(value, list) and [*map(type, value)] == [int, str]


def _anything(value: Any) -> bool:
    return True


# Fields that are computed with; schema 1 had no checksums.
KINDS: Mapping[str, Callable[[Any], bool]] = {"seconds": _is_time, "versions": _are_versions, "crafted": _is_digest}
