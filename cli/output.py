"""Output of tables, or of their JSON, on stdout."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from vitattack.core.table import Table

LONGEST = 1000  # characters of a line that is read by a program


def show(tables: Table | Sequence[Table], content: Any, form: str) -> None:
    if form == "json":
        click.echo(json.dumps(content, indent=2))
        return
    for number, table in enumerate([tables] if isinstance(tables, Table) else tables):
        if number:
            click.echo()
        if form == "table":
            _print(table)
            for note in table.notes:
                click.echo(note)
        else:
            click.echo({"md": table.markdown, "csv": table.csv, "latex": table.latex}[form](), nl=False)


def _print(table: Table) -> None:
    """Print at the width of the terminal; tables of names to copy are stacked or printed at full width instead of folded."""
    console, shown = Console(soft_wrap=False), table.rich()
    if table.whole:
        wanted = console.measure(shown, options=console.options.update(width=LONGEST)).maximum
        if wanted > console.width and (console.is_terminal or "COLUMNS" in os.environ):
            click.echo(table.stacked())
            return
        console.width = max(wanted, console.width)
    # not as the table's own title, which is folded to the width of its columns
    console.print(Text(table.title, style="italic", overflow="fold"))
    console.print(shown)


def terminal_width() -> int:
    """The number of columns that a table may take up."""
    return Console().width
