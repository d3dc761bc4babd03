"""Progress of a training run on stderr: bars over all steps and over the stage at work, and a line per epoch."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from rich.progress import TaskID

from vitattack.train.loop.reporter import Reporter, Row
from vitattack.train.recipe import Recipe

from ..terminal import print_line, progress_console
from .bars import bar
from .stages import Stage

SECONDS_BETWEEN_LINES = 30.0
SECONDS_BETWEEN_LOOKS = 1.0
EPOCH_COLUMNS = {"loss": ".4f", "clean": ".1%", "robust": ".1%", "one_step": ".1%", "gap_p99": ".1f", "seconds": ".0f"}


class TrainingScreen(Reporter):
    """Shows bars on a terminal, and elsewhere a line whenever nothing was said for a while."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.console = progress_console()
        self.progress = bar(self.console, quiet)
        self.last_line = time.monotonic()
        self.at_work: Stage | None = None
        self._bar: TaskID | None = None
        self._over = threading.Event()

    def __enter__(self) -> TrainingScreen:
        if not self.quiet and not self.console.is_terminal:
            threading.Thread(target=self._speak_up, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.progress.stop()

    def stage(self, what: str, done: int, total: int) -> None:
        if self.at_work is None or self.at_work.what != what:
            self.at_work = Stage(what, time.monotonic())
            self.progress.start()
            if self._bar is not None:
                self.progress.remove_task(self._bar)
            self._bar = self.progress.add_task(what, total=total, state="")
        self.at_work.done, self.at_work.total = done, total
        if self._bar is not None:
            self.progress.update(self._bar, completed=done, total=total)
        if done >= total:
            if self._bar is not None:
                self.progress.remove_task(self._bar)
            self.at_work = self._bar = None

    def _speak_up(self) -> None:
        """Say what is at work once nothing was said for a while, so that a long stage does not look hung."""
        while not self._over.wait(SECONDS_BETWEEN_LOOKS):
            working = self.at_work
            if working is not None and time.monotonic() - self.last_line > SECONDS_BETWEEN_LINES:
                self._print(working.line(time.monotonic()))

    def begin(self, recipe: Recipe, folder: Path, step: int, total: int) -> None:
        self.progress.start()
        self.task = self.progress.add_task(recipe.name, total=total, completed=step, state="")
        self._print(f"{recipe.name}: {folder}" + (f", resuming after {step} of {total} steps" if step else ""))

    def step(self, row: Row) -> None:
        state = f"epoch {row['epoch']:.0f} loss {row['loss']:.3f}"
        self.progress.update(self.task, completed=row["step"], state=state)
        if not self.console.is_terminal and time.monotonic() - self.last_line > SECONDS_BETWEEN_LINES:
            self._print(f"step {row['step']:.0f} {state}")

    def epoch(self, row: Row, best: bool) -> None:
        numbers = " ".join(f"{key} {row[key]:{spec}}" for key, spec in EPOCH_COLUMNS.items() if key in row)
        self._print(f"epoch {row['epoch']:.0f} {numbers}{' (best)' if best else ''}")

    def warn(self, text: str) -> None:
        print_line(self.console, f"warning: {text}")

    def _print(self, text: str) -> None:
        self.last_line = time.monotonic()
        if not self.quiet:
            print_line(self.console, text)
