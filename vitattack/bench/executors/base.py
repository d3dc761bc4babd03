"""Who runs the tasks of a benchmark, and what is told meanwhile. Neither order nor number of workers changes a record."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol

from vitattack.bench.run.tasks import Listener, Outcome, Task, run_task

TRIES = 4  # of a task whose worker dies under it


class Progress:
    """What a person may want to see of the whole matrix; the default shows nothing."""

    def begin(self, tasks: Sequence[Task], stored: int) -> None:
        """These tasks are about to run; `stored` cells were there before."""

    def moved(self, task: Task, done: int, total: int) -> None:
        """A running task has stored so many images."""

    def ended(self, outcome: Outcome) -> None:
        """A task has come to its end."""

    def note(self, line: str) -> None:
        """Something worth knowing, such as a worker that was lost."""


class Executor(Protocol):
    """Runs tasks and gives their outcomes as they come; closing the iterator stops what is running."""

    def run(self, tasks: Sequence[Task], progress: Progress) -> Generator[Outcome]: ...


class Serial:
    """One task after the other, in this process."""

    def run(self, tasks: Sequence[Task], progress: Progress) -> Generator[Outcome]:
        for task in tasks:
            yield run_task(task, _Told(progress, task))


class _Told(Listener):
    def __init__(self, progress: Progress, task: Task) -> None:
        self._progress, self._task = progress, task

    def moved(self, done: int, total: int) -> None:
        self._progress.moved(self._task, done, total)
