"""Bars of long runs, shown on a terminal only; elsewhere their owners print a line now and then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, SpinnerColumn, TimeElapsedColumn, TimeRemainingColumn

from ..terminal import progress_console, text_column

if TYPE_CHECKING:
    from rich.console import Console


def bar(console: Console, quiet: bool, how_far: str = "{task.completed}/{task.total} {task.fields[state]}") -> Progress:
    """A bar with a description, the progress formatted by `how_far`, and the elapsed and the remaining time."""
    return Progress(
        SpinnerColumn(),
        text_column("{task.description}"),
        BarColumn(bar_width=24),
        text_column(how_far, ""),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    )


@contextmanager
def counting_bar(what: str, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar for work that reports nothing but counts."""
    console = progress_console()
    columns = (SpinnerColumn(), text_column("{task.description}"), BarColumn(bar_width=24), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
