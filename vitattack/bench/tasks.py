"""Tasks of a benchmark: a cell, or a shard of one, as texts that a process on any machine understands."""

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

# `part`: this shard is done, the last one brings the result. `published`: never run, tables quote a paper.
CellStatus = Literal["ok", "part", "failed", "cancelled", "published"]
SECONDS_FOR_A_LOCK = 30.0  # workers of a killed driver on other machines may still be finishing a batch


@dataclass(frozen=True)
class Task:
    """Everything a worker needs; attack, threads and device are resolved, so that all workers compute the same key."""

    cell: Cell
    attack: str
    threads: int
    store: str
    shard: tuple[int, int] = (0, 1)
    device: str = "auto"
    data_dir: str | None = None
    fresh: bool = False
    jobs: int | None = 1  # processes that share the task; None for as many as suit the machine
    unsafe_code: bool = False

    @property
    def name(self) -> str:
        """Name of the cell, with the shard if there are several."""
        number, count = self.shard
        return self.cell.name if count == 1 else f"{self.cell.name} {number}/{count}"


@dataclass(frozen=True)
class Outcome:
    """End of a task; the result itself is in the store, in `folder`."""

    task: Task
    status: CellStatus
    folder: str | None = None
    from_store: bool = False
    error: str = ""
    trace: str = field(default="", repr=False)


class Listener:
    """Callbacks of a running task; these do nothing."""

    def keyed(self, folder: str, root: Path) -> None:
        """The folder of the task's job below `root` is known and not read yet."""

    def moved(self, done: int, total: int) -> None:
        """`done` images of this task are stored."""


def run_task(task: Task, listener: Listener = Listener()) -> Outcome:
    """Run a task to its end; any error becomes an outcome, so that other tasks go on."""
    from vitattack.core.locks import Locked

    deadline = time.monotonic() + SECONDS_FOR_A_LOCK
    while True:
        try:
            return _run(task, listener)
        except Locked as error:
            if time.monotonic() > deadline:
                return failed(task, error)
            time.sleep(1.0)
        except Exception as error:  # noqa: BLE001  # models, data and plug-in attacks may raise anything
            return failed(task, error)


def failed(task: Task, error: BaseException) -> Outcome:
    """The outcome of a task that raised."""
    line = str(error) if isinstance(error, VitattackError) else f"{type(error).__name__}: {first_line(error)}"
    return Outcome(task, "failed", error=line, trace="".join(traceback.format_exception(error)))


def _run(task: Task, listener: Listener) -> Outcome:
    from vitattack.evaluation.evaluate import evaluate
    from vitattack.evaluation.listener import EvaluationListener
    from vitattack.evaluation.setup import Setup
    from vitattack.models.zoo.file_options import FileOptions
    from vitattack.models.zoo.names import is_program

    class TaskListener(EvaluationListener):
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
            # all images are stored; records of a second pass over survivors still have to reach a remote store
            return lambda records, total: listener.moved(*self.stored)

        def done(self, result: Result | None, from_store: bool) -> None:
            self.from_store = from_store

    cell, listening = task.cell, TaskListener()
    setup = Setup(
        data=cell.data,
        limit=cell.settings.limit,
        calibration=cell.settings.calibration,
        data_dir=task.data_dir,
        transform=cell.settings.transform,
        options=FileOptions(**cell.options, unsafe_pickle=task.unsafe_code and is_program(cell.model)),
        seed=cell.seed,
        batch_size=cell.settings.batch_size,
        threads=task.threads,
        jobs=task.jobs,
        device=task.device,
        out=task.store,
        fresh=task.fresh,
        shard=task.shard,
    )
    evaluation = evaluate(cell.model, task.attack, threat=cell.threat, setup=setup, listener=listening)
    return Outcome(task, "ok" if evaluation.finished else "part", listening.folder, listening.from_store)
