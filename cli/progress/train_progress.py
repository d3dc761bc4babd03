"""Progress of a training run on stderr: a bar over all steps, and a line per epoch."""

from __future__ import annotations

import time
from pathlib import Path

from vitattack.train.loop.reporter import Reporter, Row
from vitattack.train.recipe import Recipe

from ..terminal import print_line, progress_console
from .bars import bar

SECONDS_BETWEEN_LINES = 30.0
EPOCH_COLUMNS = {"loss": ".4f", "clean": ".1%", "robust": ".1%", "one_step": ".1%", "gap_p99": ".1f", "seconds": ".0f"}


class TrainingScreen(Reporter):
    """Shows a bar on a terminal, and lines now and then elsewhere."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.console = progress_console()
        self.progress = bar(self.console, quiet)
        self.last_line = time.monotonic()

    def __enter__(self) -> TrainingScreen:
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def begin(self, recipe: Recipe, folder: Path, step: int, total: int) -> None:
        self.progress.start()
        self.task = self.progress.add_task(recipe.name, total=total, completed=step, state="")
        self._print(f"{recipe.name}: {folder}" + (f", resuming after {step} of {total} steps" if step else ""))

    def step(self, row: Row) -> None:
        state = f"epoch {row['epoch']:.0f} loss {row['loss']:.3f}"
        self.progress.update(self.task, completed=row["step"], state=state)
        if not self.console.is_terminal and time.monotonic() - self.last_line > SECONDS_BETWEEN_LINES:
            self.last_line = time.monotonic()
            self._print(f"step {row['step']:.0f} {state}")

    def epoch(self, row: Row, best: bool) -> None:
        numbers = " ".join(f"{key} {row[key]:{spec}}" for key, spec in EPOCH_COLUMNS.items() if key in row)
        self._print(f"epoch {row['epoch']:.0f} {numbers}{' (best)' if best else ''}")

    def warn(self, text: str) -> None:
        print_line(self.console, f"warning: {text}")

    def _print(self, text: str) -> None:
        if not self.quiet:
            print_line(self.console, text)
