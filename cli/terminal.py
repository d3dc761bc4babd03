"""All that is printed goes through here: nothing in a text is taken for markup, and nothing moves the cursor."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING, Any

import click

from vitattack.core.words import on_terminal, without_secrets

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn


def buffer_output() -> None:
    """Give stdout a buffer where Python was told to use none: unbuffered, it drops without a word what a full disk refuses."""
    own = sys.stdout is sys.__stdout__  # not what a caller put there to capture it
    if own and isinstance(sys.stdout, io.TextIOWrapper) and isinstance(sys.stdout.buffer, io.RawIOBase):
        buffered = io.BufferedWriter(sys.stdout.buffer)
        sys.stdout = io.TextIOWrapper(buffered, sys.stdout.encoding, sys.stdout.errors, line_buffering=True)


def say(line: str) -> None:
    """Print one line on stderr."""
    click.echo(" ".join(on_terminal(without_secrets(line)).split()), err=True)


def write(text: str = "", *, newline: bool = True) -> None:
    """Print text of any number of lines on stdout."""
    click.echo(on_terminal(text), nl=newline)


def write_json(content: Any) -> None:
    """Print a value as JSON, whose strings are escaped."""
    click.echo(json.dumps(content, indent=2))


def output_console() -> Console:
    """The console of stdout, for tables."""
    return _console(stderr=False)


def progress_console() -> Console:
    """The console of stderr, for what is seen while a run goes on."""
    return _console(stderr=True)


def print_line(console: Console, line: str) -> None:
    """Print a line above the bars of a console, as it is."""
    console.print(on_terminal(without_secrets(line)), markup=False, emoji=False, highlight=False, soft_wrap=True)


def text_column(template: str, unmeasured: str | None = None) -> ProgressColumn:
    """A column of a progress bar that shows the task's fields as they are, by another template while it has no total."""
    from rich.progress import Task, TextColumn
    from rich.text import Text

    class Plain(TextColumn):
        def render(self, task: Task) -> Text:
            form = self.text_format if task.total is not None or unmeasured is None else unmeasured
            return Text(on_terminal(form.format(task=task)))

    return Plain(template)


def _console(stderr: bool) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)
