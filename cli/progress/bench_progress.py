"""Progress of a benchmark on stderr: a bar on a terminal, elsewhere a line for each cell that ended."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from vitattack.bench.executors.executor import BenchProgress
from vitattack.bench.tasks import Outcome, Task

from ..terminal import print_line, progress_console
from .bars import bar


class BenchScreen(BenchProgress):
    """Number of finished tasks, with the shares of the running ones."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.console = progress_console()
        self.bar = bar(self.console, quiet, "{task.completed:.1f}/{task.total}")
        self.shares: dict[str, float] = {}  # of running tasks
        self.finished = 0.0
        self.count = 0

    def __enter__(self) -> BenchScreen:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.bar.stop()

    def begin(self, tasks: Sequence[Task], stored: int) -> None:
        self.count = len(tasks)
        self._print(f"{len(tasks)} jobs to run, {stored} cells stored or published")
        self.bar.start()
        self.line = self.bar.add_task("bench", total=len(tasks))

    def moved(self, task: Task, done: int, total: int) -> None:
        self.shares[task.name] = done / max(1, total)
        self._update(task.cell.name)

    def ended(self, outcome: Outcome) -> None:
        name = outcome.task.name
        self.shares.pop(name, None)
        self.finished += 1 / outcome.task.shard[1]
        self._update(name)
        if outcome.status == "failed" or not self.console.is_terminal:
            error = f": {outcome.error}" if outcome.error else ""
            self._print(f"{self.finished:.0f}/{self.count} {outcome.status} {name}{error}")

    def note(self, line: str) -> None:
        self._print(line)

    def _print(self, line: str) -> None:
        if not self.quiet:
            print_line(self.console, line)

    def _update(self, name: str) -> None:
        if self.count:
            self.bar.update(self.line, completed=self.finished + sum(self.shares.values()), description=name[:60])
