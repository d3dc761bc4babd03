"""Progress of an evaluation in a notebook: a bar per job while it runs."""

from __future__ import annotations

from collections.abc import Sequence

from vitattack.core.notebook import NotebookBar
from vitattack.evaluation.listener import EvaluationListener
from vitattack.records.job import Job
from vitattack.records.record import RecordListener, SampleRecord
from vitattack.records.result import Result


class NotebookProgress(EvaluationListener):
    """Clean and robust accuracy so far, beside the bar of the job at work."""

    def __init__(self) -> None:
        self._bar: NotebookBar | None = None

    def job(self, job: Job, number: int, count: int) -> RecordListener:
        return self._watch(job.attack if count == 1 else f"{job.attack} ({number + 1} of {count})")

    def again(self, job: Job, name: str) -> RecordListener:
        return self._watch(f"{job.attack}: {name} on survivors")

    def done(self, result: Result | None, from_store: bool) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _watch(self, what: str) -> RecordListener:
        if self._bar is not None:
            self._bar.close()
        bar = self._bar = NotebookBar(what)
        seen: list[SampleRecord] = []

        def watch(records: Sequence[SampleRecord], total: int) -> None:
            seen.extend(records)
            clean, robust = (sum(held) / max(1, len(seen)) for held in _counts(seen))
            bar.show(len(seen), total, f"clean {clean:.1%} robust {robust:.1%}" if seen else "")

        return watch


def _counts(records: Sequence[SampleRecord]) -> tuple[list[bool], list[bool]]:
    return [r.clean == r.label for r in records], [r.status == "robust" for r in records]
