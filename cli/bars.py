"""The bar of a long run, on a terminal alone; elsewhere its owner prints a line now and then."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn


def bar(console: Console, quiet: bool, how_far: str = "{task.completed}/{task.total} {task.fields[state]}") -> Progress:
    """What runs, how far it is in the words of `how_far`, and the time that is left."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn(how_far),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    )
