"""Output of tables, or of their JSON, on stdout."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.text import Text

from vitattack.core.table import Table, as_csv
from vitattack.core.words import on_terminal

from .terminal import output_console, say, write, write_json

LONGEST = 1000  # characters of a line that is read by a program


def show(tables: Table | Sequence[Table], content: Any, form: str) -> None:
    if form == "json":
        write_json(content)
        return
    if form == "csv":
        _show_csv([tables] if isinstance(tables, Table) else tables)
        return
    for number, table in enumerate([tables] if isinstance(tables, Table) else tables):
        if number:
            write()
        if form == "table":
            _print(table)
            for note in table.notes:
                write(note)
        else:
            write({"md": table.markdown, "latex": table.latex}[form](), newline=False)


def _show_csv(tables: Sequence[Table]) -> None:
    """Print rows on stdout; title and notes go into a file beside the one that stdout is, or else to stderr."""
    rows, remarks = as_csv(tables)
    beside = _beside_stdout()
    write(rows, newline=False)
    if beside is not None:
        with suppress(OSError):
            beside.write_text(remarks)
            say(f"title and notes: {beside}")
            return
    for line in remarks.splitlines():
        say(line)


def _beside_stdout() -> Path | None:
    """NAME.notes.txt where stdout is a new file NAME.csv."""
    with suppress(OSError, ValueError):
        handle = sys.stdout.fileno()
        path, status = Path(f"/proc/self/fd/{handle}").readlink(), os.fstat(handle)  # of Linux alone
        if path.suffix == ".csv" and stat.S_ISREG(status.st_mode) and status.st_size == 0:
            return path.with_suffix(".notes.txt")
    return None


def _print(table: Table) -> None:
    """Print at the width of the terminal; tables of names to copy are stacked or printed at full width instead of folded."""
    console, shown = output_console(), table.rich()
    wanted = console.measure(shown, options=console.options.update(width=LONGEST)).maximum
    if table.line_each:
        shown = table.narrowed(wanted - console.width).rich()
    if table.whole:
        if wanted > console.width and (console.is_terminal or "COLUMNS" in os.environ):
            write(table.stacked())
            return
        console.width = max(wanted, console.width)
    # not as the table's own title, which is folded to the width of its columns
    console.print(Text(on_terminal(table.title), style="italic", overflow="fold"))
    console.print(shown)


def terminal_width() -> int:
    """The number of columns that a table may take up."""
    return output_console().width
