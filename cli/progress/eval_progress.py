"""Progress of an evaluation: a bar per job and per stage at work on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType

from vitattack.core.progress import current_listener, listening
from vitattack.evaluation.listener import EvaluationListener
from vitattack.records.job import Job
from vitattack.records.record import RecordListener, SampleRecord
from vitattack.records.result import Result

from ..terminal import print_line, progress_console
from .bars import bar
from .stages import StageBoard, StageListener


class EvaluationScreen(EvaluationListener):
    """Running clean and robust accuracy, rate and remaining time of each job."""

    def __init__(self, quiet: bool, model: str = "") -> None:
        self.quiet = quiet
        self._model = f"{model}: " if model else ""  # where there are several
        self.console = progress_console()
        self.progress = bar(self.console, quiet)
        self.board = StageBoard(self.progress, self.console, quiet)
        self._open = ExitStack()

    def __enter__(self) -> EvaluationScreen:
        self._open.callback(self.progress.stop)
        self._open.enter_context(self.board)
        self._open.enter_context(listening(StageListener(self.board, current_listener())))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._open.close()

    def job(self, job: Job, number: int, count: int) -> RecordListener:
        return self._bar(f"{self._model}{job.attack}")

    def again(self, job: Job, name: str) -> RecordListener:
        return self._bar(f"{self._model}{job.attack}: {name} on survivors")

    def _bar(self, title: str) -> RecordListener:
        self.progress.start()  # not earlier: a download may be using the terminal
        task = self.progress.add_task(title, total=None, state="")
        seen: list[SampleRecord] = []
        before: int | None = None
        began = time.monotonic()

        def watch(records: Sequence[SampleRecord], total: int) -> None:
            nonlocal before
            if before is None:
                before = len(records)
                if before and not self.quiet:
                    print_line(self.console, f"{title}: resuming after {before} of {total} stored images")
            seen.extend(records)
            state = _state(seen, (len(seen) - before) / max(1e-9, time.monotonic() - began))
            self.progress.update(task, completed=len(seen), total=total, state=state)
            self.board.tell(title, len(seen), total, state=state, has_bar=True)

        return watch

    def done(self, result: Result | None, from_store: bool) -> None:
        if self.quiet:
            return
        if result is None:
            print_line(self.console, "this shard is done; the table comes with the last shard")
        elif from_store:
            print_line(self.console, f"{result.job.attack}: from the store, {result.folder}")


def _state(records: Sequence[SampleRecord], rate: float) -> str:
    n = len(records)
    if n == 0:
        return ""
    clean = sum(r.clean == r.label for r in records) / n
    robust = sum(r.status == "robust" for r in records) / n
    return f"clean {clean:.1%} robust {robust:.1%} {rate:.1f} img/s"
