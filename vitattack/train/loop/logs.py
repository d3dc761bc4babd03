"""Log files of a run, in JSON lines and CSV, passed on to the trackers that were asked for."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from vitattack.core.errors import VitattackError
from vitattack.core.files import append_line, write_atomically
from vitattack.train.loop.reporter import Row
from vitattack.train.loop.trackers import open_tracker


class RunLog:
    """`steps.jsonl`, `epochs.jsonl` and `epochs.csv`; on resume, rows after `step` are dropped, since they will be repeated."""

    def __init__(self, folder: Path, step: int, trackers: Sequence[str] = (), about: Mapping[str, Any] | None = None):
        self._steps, self._epochs, self._csv = (folder / n for n in ("steps.jsonl", "epochs.jsonl", "epochs.csv"))
        for path in (self._steps, self._epochs):
            _drop_rows_after(path, step)
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
            f"cannot write {path} ({error.strerror}): free some space and run the same command to go on"
        ) from error


def read_rows(path: Path) -> list[Row]:
    """Rows of a JSON lines file; a line that a crash cut short is skipped."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else ():
        with suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict):
                rows.append(row)
    return rows


def _drop_rows_after(path: Path, step: int) -> None:
    if path.exists():
        rows = [row for row in read_rows(path) if row.get("step", 0) <= step]
        write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows))
