"""The unit of work of a benchmark: a cell or a shard of one, as texts that any process on any machine understands."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vitattack.bench.cells import Cell
from vitattack.core.errors import VitattackError, first_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vitattack.records.job import Job
    from vitattack.records.record import RecordListener, SampleRecord
    from vitattack.records.result import Result

# `part`: this shard is done, the result comes with the last one. `published`: never run, the table quotes a paper.
Status = Literal["ok", "part", "failed", "cancelled", "published"]
SECONDS_FOR_A_LOCK = 30.0  # a driver that was killed may have workers that end a batch


@dataclass(frozen=True)
class Task:
    """Everything a worker needs; attack, threads and device are settled, so that every worker makes the same key."""

    cell: Cell
    attack: str
    threads: int
    store: str
    shard: tuple[int, int] = (0, 1)
    device: str = "auto"
    data_dir: str | None = None
    fresh: bool = False

    @property
    def name(self) -> str:
        number, count = self.shard
        return self.cell.name if count == 1 else f"{self.cell.name} {number}/{count}"


@dataclass(frozen=True)
class Outcome:
    """What became of a task; the result itself is in the store, in `folder`."""

    task: Task
    status: Status
    folder: str | None = None
    from_store: bool = False
    error: str = ""
    trace: str = field(default="", repr=False)


class Listener:
    """Hears of a task while it runs; the default does not care."""

    def keyed(self, folder: str, root: Path) -> None:
        """The folder of the task's job below `root` is known, and is about to be looked into."""

    def moved(self, done: int, total: int) -> None:
        """So many images of this task are stored."""


def run_task(task: Task, listener: Listener = Listener()) -> Outcome:
    """Runs a task to its end; whatever goes wrong is an outcome, so that the others go on."""
    from vitattack.records.store import Locked

    patience = time.monotonic() + SECONDS_FOR_A_LOCK
    while True:
        try:
            return _run(task, listener)
        except Locked as error:
            if time.monotonic() > patience:
                return failed(task, error)
            time.sleep(1.0)
        except Exception as error:  # noqa: BLE001  # of models, data and foreign attacks: any kind
            return failed(task, error)


def failed(task: Task, error: BaseException) -> Outcome:
    """The outcome of a task that raised."""
    line = str(error) if isinstance(error, VitattackError) else f"{type(error).__name__}: {first_line(error)}"
    return Outcome(task, "failed", error=line, trace="".join(traceback.format_exception(error)))


def _run(task: Task, listener: Listener) -> Outcome:
    from vitattack.evaluation.evaluate import evaluate
    from vitattack.evaluation.listener import EvaluationListener
    from vitattack.models.zoo.load import FileOptions

    class Ears(EvaluationListener):
        folder: str | None = None
        from_store = False
        stored = (0, 0)

        def keyed(self, job: Job, root: Path) -> None:
            self.folder = job.folder
            listener.keyed(job.folder, root)

        def job(self, job: Job, number: int, count: int) -> RecordListener:
            done = 0

            def watch(records: Sequence[SampleRecord], total: int) -> None:
                nonlocal done
                done += len(records)
                self.stored = (done, total)
                listener.moved(done, total)

            return watch

        def again(self, job: Job, name: str) -> RecordListener:
            # every image is stored already; what a pass over survivors adds still has to reach whoever keeps it
            return lambda records, total: listener.moved(*self.stored)

        def done(self, result: Result | None, from_store: bool) -> None:
            self.from_store = from_store

    cell, ears = task.cell, Ears()
    evaluation = evaluate(
        cell.model,
        task.attack,
        threat=cell.threat,
        data=cell.data,
        limit=cell.settings.limit,
        calibration=cell.settings.calibration,
        seed=cell.seed,
        batch_size=cell.settings.batch_size,
        threads=task.threads,
        device=task.device,
        out=task.store,
        fresh=task.fresh,
        shard=task.shard,
        options=FileOptions(**cell.options),
        data_dir=task.data_dir,
        transform=cell.settings.transform,
        listener=ears,
    )
    return Outcome(task, "ok" if evaluation.finished else "part", ears.folder, ears.from_store)
