"""Table of the runs of a store; what all of them share stands in the title."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from vitattack.core.percent import percent, span
from vitattack.core.table import Table
from vitattack.records.result import label
from vitattack.records.stored_runs import Runs, StoredRun

TEXTS = ("model", "attack", "threat", "data")
FIGURES = ("n", "clean", "robust", "95 %", "passes", "time", "age")


def runs_table(root: Path, runs: Sequence[StoredRun], of: int) -> Table:
    """A row per run, the last one first."""
    rows = [(run.short, *_texts(run), *_figures(run)) for run in runs]
    shared = [place for place in range(1, 5) if len(rows) > 1 and len({row[place] for row in rows}) == 1]
    shown = [place for place in range(5 + len(FIGURES)) if place not in shared]
    counted = f"{len(runs)} runs" if len(runs) == of else f"{len(runs)} of {of} runs"
    title = " | ".join([f"{root}: {counted if of != 1 else '1 run'}", *(rows[0][place] for place in shared)])
    heads = ("run", *TEXTS, *FIGURES)
    return Table(
        title,
        [heads[place] for place in shown],
        [[row[place] for place in shown] for row in rows],
        _notes(runs),
        left=5 - len(shared),
        whole=True,
    )


def table_of_runs(runs: Runs) -> Table:
    """The table of a list of runs."""
    return runs_table(runs.root, runs.runs, runs.of)


def _texts(run: StoredRun) -> tuple[str, str, str, str]:
    if run.job is None:
        return run.folder.name, "", "", ""
    return run.job.model, label(run.job.attack), run.job.threat, run.job.data


def _figures(run: StoredRun) -> tuple[str, ...]:
    age = ago(time.time() - run.changed)
    if run.clean is None or run.robust is None or run.passes is None or run.seconds is None:
        return str(run.n or ""), "", run.state, "", "", "", age
    robust = percent(run.robust.accuracy), span(run.robust.low, run.robust.high)
    doubts = "?" * bool(run.doubts)
    return (
        str(run.n), percent(run.clean.accuracy), robust[0] + doubts, robust[1], f"{run.passes:.0f}",
        duration(run.seconds), age,
    )  # fmt: skip


def _notes(runs: Sequence[StoredRun]) -> list[str]:
    notes = []
    if any(run.doubts for run in runs if run.state == "finished"):
        notes.append("?: with doubts, which `vitattack runs show RUN` names")
    if any(run.state == "unfinished" for run in runs):
        notes.append("unfinished: n counts the images so far; the same command goes on from there")
    if any(run.state == "damaged" for run in runs):
        notes.append("damaged: `vitattack runs verify RUN` says where; running the command again repairs it")
    return notes


def run_line(run: StoredRun) -> str:
    """A run in one line."""
    texts = " ".join(text for text in _texts(run)[:3] if text)
    number = f"robust {percent(run.robust.accuracy)} of {run.n}" if run.robust else f"{run.state}, {run.n} images"
    return f"{run.short} {texts} ({number}, {ago(time.time() - run.changed)} ago)"


def duration(seconds: float) -> str:
    """A time in the unit that fits it."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}" if seconds < 10 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def ago(seconds: float) -> str:
    """How long ago something was, in whole units."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
