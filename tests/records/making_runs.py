"""Runs made up for tests, stored by the store itself: a letter per image says what became of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitattack.records.batch import BatchNotes
from vitattack.records.job import Job
from vitattack.records.record import SampleRecord, Status
from vitattack.records.result import Result
from vitattack.records.store import Sink

STATUS: dict[str, Status] = {"r": "robust", "f": "fooled", "c": "clean_wrong", "i": "invalid"}


def record(index: int, letter: str, forwards: int = 5) -> SampleRecord:
    """A sample of class 0 that is robust, fooled, clean-wrong or invalid."""
    clean, adversarial = {"r": (0, 0), "f": (0, 1), "c": (1, -1), "i": (0, -1)}[letter]
    return SampleRecord(index, 0, clean, adversarial, STATUS[letter], 0.03, False, letter == "i", 1, forwards, 4)


def make_job(model: str = "one", attack: str = "pgd", **more: Any) -> Job:
    settings = {"threat": "linf:8/255", "data": "toys", "weights": f"weights of {model}", "pixels": "pixels", **more}
    return Job(model=model, attack=attack, **settings)


def make_run(
    root: Path, letters: str, model: str = "one", attack: str = "pgd", *, stop_after: int | None = None, **more: Any
) -> Path:
    """Store a run in batches of four, up to `stop_after` batches; returns its folder."""
    doubts, first = more.pop("doubts", ()), more.pop("first_row", 0)
    job = make_job(model, attack, **more)
    rows = [first + at for at in range(len(letters))]
    batches = [tuple(rows[at : at + 4]) for at in range(0, len(rows), 4)]
    records = {row: record(row, letter) for row, letter in zip(rows, letters, strict=True)}
    with Sink(root, job, batches) as sink:
        for number, batch in enumerate(sink.todo):
            if number == stop_after:
                return sink.folder
            sink.write([records[row] for row in batch], BatchNotes(tuple(doubts)))
        result = Result(job, list(records.values()), 2.5, tuple(doubts), {"versions": {}}, sink.folder)
        content = {**result.json(), "sections": [], "model": {}, "provenance": result.provenance}
        sink.confirm(list(records.values()))
        sink.keep_result(content)
    return sink.folder
