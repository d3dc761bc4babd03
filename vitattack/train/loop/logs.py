"""Log files of a run, in JSON lines and CSV, passed on to the trackers that were asked for."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from vitattack.core.errors import VitattackError
from vitattack.core.files import append_line, write_atomically
from vitattack.train.loop.reporter import Row
from vitattack.train.loop.trackers import open_tracker


class RunLog:
    """`steps.jsonl`, `epochs.jsonl` and `epochs.csv`; on resume, rows after `step` are dropped, since they will be repeated.

    Lines that are no rows are kept beside the file, and `damaged` tells of them. `epochs` are the rows that a checkpoint
    holds; what the file holds in their place gives way to them.
    """

    def __init__(
        self,
        folder: Path,
        step: int,
        trackers: Sequence[str] = (),
        about: Mapping[str, Any] | None = None,
        epochs: Sequence[Row] | None = None,
    ) -> None:
        self._steps, self._epochs, self._csv = (folder / n for n in ("steps.jsonl", "epochs.jsonl", "epochs.csv"))
        self.damaged = [note for path in (self._steps, self._epochs) if (note := _drop_rows_after(path, step))]
        if epochs is not None and _text(self.epochs()) != _text(epochs):
            write_atomically(self._epochs, _text(epochs))
            self.damaged.append(f"rows of {self._epochs} were missing or damaged: those of the checkpoint are back")
        self._write_csv()
        self._trackers = [open_tracker(name, folder, dict(about or {})) for name in trackers]

    def step(self, row: Row) -> None:
        _append(self._steps, row)
        for tracker in self._trackers:
            tracker.log(int(row["step"]), {k: v for k, v in row.items() if k != "step"})

    def epoch(self, row: Row) -> None:
        _append(self._epochs, row)
        self._write_csv()
        for tracker in self._trackers:
            tracker.log(int(row["step"]), {f"epoch/{k}": v for k, v in row.items() if k != "step"})

    def epochs(self) -> list[Row]:
        return read_rows(self._epochs)

    def close(self) -> None:
        for tracker in self._trackers:
            tracker.close()

    def _write_csv(self) -> None:
        """Rewrite the whole file, since hooks may add columns in later epochs."""
        rows = self.epochs()
        columns = list(dict.fromkeys(key for row in rows for key in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_atomically(self._csv, text.getvalue())


def _append(path: Path, row: Row) -> None:
    try:
        append_line(path, json.dumps(row))
    except OSError as error:
        raise VitattackError(
            f"cannot write {path} ({error.strerror}): free some space and run the same command to resume"
        ) from error


def read_rows(path: Path) -> list[Row]:
    """Rows of a JSON lines file; lines that are no rows are skipped."""
    return [row for line in _lines(path) if (row := _row(line)) is not None]


def is_row(content: object) -> TypeGuard[Row]:
    """Whether this is a row of a log: numbers by name, the step among them."""
    return isinstance(content, dict) and "step" in content and all(map(_is_number, content.values()))


def _is_number(value: object) -> bool:
    return isinstance(value, float) or (type(value) is int and abs(value) < 2**63)


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines() if path.is_file() else []


def _row(line: bytes) -> Row | None:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return content if is_row(content) else None


def _text(rows: Iterable[Row]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _drop_rows_after(path: Path, step: int) -> str | None:
    """Drop rows after `step`, move lines that are no rows aside, and return a note about those."""
    if not path.is_file():
        return None
    lines = _lines(path)
    damaged = [line for line in lines if line and _row(line) is None]
    torn_by_a_kill = bool(damaged) and damaged[-1] is lines[-1] and not path.read_bytes().endswith(b"\n")
    if torn_by_a_kill:
        damaged.pop()
    if damaged:
        with path.with_name(f"{path.name}.damaged").open("ab") as stream:
            stream.writelines(line + b"\n" for line in damaged)
    write_atomically(path, _text([row for row in read_rows(path) if row["step"] <= step]))
    return f"{len(damaged)} damaged lines of {path} were moved to {path.name}.damaged" if damaged else None
