"""Listener for the progress of an evaluation."""

from __future__ import annotations

from pathlib import Path

from vitattack.records.job import Job
from vitattack.records.record import RecordListener
from vitattack.records.result import Result


class EvaluationListener:
    """Events of an evaluation while it runs; the default ignores them."""

    def keyed(self, job: Job, root: Path) -> None:
        """The key of a job is known; the store in `root` is about to be searched for it."""

    def job(self, job: Job, number: int, count: int) -> RecordListener:
        """A job is about to run; the returned callable is given its records."""
        return lambda records, total: None

    def again(self, job: Job, name: str) -> RecordListener:
        """A pass over survivors of the job is about to run: its "probe", or the "full" AutoAttack."""
        return lambda records, total: None

    def done(self, result: Result | None, from_store: bool) -> None:
        """A job has ended; None if other shards have to finish first."""


class WithoutShards(EvaluationListener):
    """Passes everything on to another listener but that a shard of a job has ended."""

    def __init__(self, listener: EvaluationListener) -> None:
        self._listener = listener
        self.keyed, self.job, self.again = listener.keyed, listener.job, listener.again  # type: ignore[method-assign]

    def done(self, result: Result | None, from_store: bool) -> None:
        if result is not None:
            self._listener.done(result, from_store)
