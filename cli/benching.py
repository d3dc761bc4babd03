"""What a person sees of a whole matrix, on stderr: a bar on a terminal, elsewhere a line for every cell that ended."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console

from vitattack.bench.executors.base import Progress
from vitattack.bench.run.tasks import Outcome, Task

from .bars import bar


class Board(Progress):
    """How many cells are done, and how far the running ones are."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.console = Console(stderr=True)
        self.bar = bar(self.console, quiet, "{task.completed:.1f}/{task.total}")
        self.share: dict[str, float] = {}
        self.ended_tasks = 0.0
        self.count = 0

    def __enter__(self) -> Board:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.bar.stop()

    def begin(self, tasks: Sequence[Task], stored: int) -> None:
        self.count = len(tasks)
        if not self.quiet:
            self.console.print(f"{len(tasks)} jobs to run, {stored} cells stored or published", highlight=False)
        self.bar.start()
        self.line = self.bar.add_task("bench", total=len(tasks))

    def moved(self, task: Task, done: int, total: int) -> None:
        self.share[task.name] = done / max(1, total)
        self._show(task.cell.name)

    def ended(self, outcome: Outcome) -> None:
        name = outcome.task.name
        self.share.pop(name, None)
        self.ended_tasks += 1 / outcome.task.shard[1]
        self._show(name)
        if not self.quiet and (outcome.status == "failed" or not self.console.is_terminal):
            said = f": {outcome.error}" if outcome.error else ""
            place = f"{self.ended_tasks:.0f}/{self.count}"
            self.console.print(f"{place} {outcome.status} {name}{said}", highlight=False, soft_wrap=True, markup=False)

    def note(self, line: str) -> None:
        if not self.quiet:
            self.console.print(line, highlight=False, soft_wrap=True, markup=False)

    def _show(self, name: str) -> None:
        if self.count:
            self.bar.update(self.line, completed=self.ended_tasks + sum(self.share.values()), description=name[:60])
