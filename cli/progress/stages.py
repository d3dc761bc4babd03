"""Stages of long work, so that none looks hung: bars below those of jobs on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitattack.core.progress import Listener

from ..terminal import print_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_LOOKS = 0.2
PAUSE = 1.0  # seconds
SHOWN_AFTER = 1.0  # seconds; shorter stages would only flicker


@dataclass
class Stage:
    """A stage at work: when it began, and how much of it is done."""

    what: str
    began: float
    done: int = 0
    total: int = 1
    before: int = 0  # done when it began
    state: str = ""
    moved: float | None = None  # when `done` last rose

    def line(self, now: float) -> str:
        """The stage in words, with its elapsed and its expected time."""
        share = self.share() if self.total > 1 else f"{self.what}:"
        return f"{share} {now - self.began:.0f} s{self.left(now)}"

    def share(self) -> str:
        return f"{self.what}: {self.done} of {self.total}" if self.total > 1 else self.what

    def left(self, now: float) -> str:
        """The expected time, as soon as a part is done."""
        here, moved = self.done - self.before, self.moved or now
        if not here:
            return ""
        seconds = (moved - self.began) / here * (self.total - self.done) - (now - moved)
        return f", about {max(0.0, seconds):.0f} s left"


class StageBoard:
    """Stages at work, from the outermost to the innermost; a thread shows them, so that telling it costs nothing."""

    def __init__(self, progress: Progress, console: Console, quiet: bool) -> None:
        self._progress, self._console = progress, console
        self._wanted = not quiet
        self._stages: dict[str, Stage] = {}
        self._bars: dict[str, TaskID] = {}
        self._with_bar: set[str] = set()
        self._guard = threading.Lock()
        self._over = threading.Event()
        self._last_line = time.monotonic()
        self._paused_until = 0.0

    def __enter__(self) -> StageBoard:
        if self._wanted:
            threading.Thread(target=self._watch, name="progress", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        with self._guard:
            self._stages.clear()
            self._remove_bars()

    def tell(self, what: str, done: int, total: int, *, state: str = "", has_bar: bool = False) -> None:
        """A stage has done a part of its work; one that has done all of it has ended. `has_bar`: it is shown already."""
        with self._guard:
            stage = self._stages.get(what)
            if done >= total:
                self._stages.pop(what, None)
                return
            if stage is None:
                stage = self._stages[what] = Stage(what, time.monotonic(), done, before=done)
                self._with_bar |= {what} if has_bar else set()
            if done != stage.done:
                stage.moved = time.monotonic()
            stage.done, stage.total, stage.state = done, total, state

    def pause(self) -> None:
        """Leave the terminal to somebody else's bars for a while."""
        with self._guard:
            self._paused_until = time.monotonic() + PAUSE
            self._remove_bars()
            self._progress.stop()

    def _watch(self) -> None:
        while not self._over.wait(SECONDS_BETWEEN_LOOKS):
            with self._guard:
                if self._over.is_set():
                    return
                now = time.monotonic()
                if self._console.is_terminal:
                    if now > self._paused_until:
                        self._show(now)
                elif now - self._last_line > SECONDS_BETWEEN_LINES and self._is_long(now):
                    self._last_line = now
                    print_line(self._console, self.line(now))

    def _is_long(self, now: float) -> bool:
        return any(now - stage.began > SHOWN_AFTER for stage in self._stages.values())

    def line(self, now: float) -> str:
        """All stages at work, the time since the first of them began, and the expected time of the first that has one."""
        stages = list(self._stages.values())
        shares = ", ".join(stage.share() + (f" {stage.state}" if stage.state else "") for stage in stages)
        times = [f"{now - stages[0].began:.0f} s"]
        expected = next((stage for stage in stages if stage.left(now)), None)
        if expected is not None:
            times.append(("" if expected is stages[0] else f"{expected.what} ") + expected.left(now).removeprefix(", "))
        return f"{shares} ({', '.join(times)})"

    def _show(self, now: float) -> None:
        for name in set(self._bars) - set(self._stages):
            self._progress.remove_task(self._bars.pop(name))
        for stage in self._stages.values():
            if stage.what in self._with_bar or now - stage.began < SHOWN_AFTER:
                continue
            if stage.what not in self._bars:
                self._progress.start()
                self._bars[stage.what] = self._progress.add_task(f"  {stage.what}", total=None, state="")
            total = stage.total if stage.total > 1 else None
            self._progress.update(self._bars[stage.what], completed=stage.done, total=total)

    def _remove_bars(self) -> None:
        for bar in self._bars.values():
            self._progress.remove_task(bar)
        self._bars.clear()


class StageListener(Listener):
    """Shows stages on a board, and passes everything else on."""

    def __init__(self, board: StageBoard, others: Listener) -> None:
        self._board, self._others = board, others

    def stage(self, what: str, done: int, total: int) -> None:
        self._board.tell(what, done, total)

    def progress(self, what: str, done: int, total: int | None) -> None:
        self._board.pause()
        self._others.progress(what, done, total)

    def note(self, line: str) -> None:
        self._others.note(line)

    def warn(self, line: str) -> None:
        self._others.warn(line)
