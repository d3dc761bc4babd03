"""Executor of tasks, and progress reports. Neither the order of tasks nor the number of workers changes a record."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from vitattack.bench.tasks import Listener, Outcome, Task, run_task

MAX_ATTEMPTS = 4  # at a task whose worker dies


class BenchProgress:
    """Progress of a whole benchmark; this one shows nothing."""

    def begin(self, tasks: Sequence[Task], stored: int) -> None:
        """These tasks are about to run; `stored` cells need no run."""

    def moved(self, task: Task, done: int, total: int) -> None:
        """A running task has stored `done` images."""

    def ended(self, outcome: Outcome) -> None:
        """A task has ended."""

    def note(self, line: str) -> None:
        """A message to the user, such as about a lost worker."""


class Executor(Protocol):
    """Runs tasks and yields their outcomes as they end; closing the iterator stops running tasks."""

    def run(self, tasks: Sequence[Task], progress: BenchProgress) -> Generator[Outcome]: ...


@dataclass(frozen=True)
class SerialExecutor:
    """One task after the other, shared by `jobs` copies of this process; None for as many as suit the machine."""

    jobs: int | None = 1

    def run(self, tasks: Sequence[Task], progress: BenchProgress) -> Generator[Outcome]:
        for task in tasks:
            yield replace(run_task(replace(task, jobs=self.jobs), _ProgressListener(progress, task)), task=task)


class _ProgressListener(Listener):
    """Passes the progress of one task on."""

    def __init__(self, progress: BenchProgress, task: Task) -> None:
        self._progress, self._task = progress, task

    def moved(self, done: int, total: int) -> None:
        self._progress.moved(self._task, done, total)
