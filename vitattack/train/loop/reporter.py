"""Progress of a run as seen from outside; the command line shows it on a screen."""

from __future__ import annotations

from pathlib import Path

from vitattack.train.recipe import Recipe

Row = dict[str, float]  # numbers of one step or one epoch, by name


class Reporter:
    """Receives the progress of a run; this default ignores it."""

    def begin(self, recipe: Recipe, folder: Path, step: int, total: int) -> None:
        """The run begins, or resumes after `step` of `total` steps."""

    def stage(self, what: str, done: int, total: int) -> None:
        """A stage of the run has done a part of its work; it begins with 0 and ends with `total`."""

    def step(self, row: Row) -> None: ...

    def epoch(self, row: Row, best: bool) -> None: ...

    def warn(self, text: str) -> None: ...
