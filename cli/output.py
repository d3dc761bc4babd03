"""A table, or its JSON, on stdout."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click
from rich.console import Console

from vitattack.report.table import Table


def show(tables: Table | Sequence[Table], content: Any, form: str) -> None:
    if form == "json":
        click.echo(json.dumps(content, indent=2))
        return
    for number, table in enumerate([tables] if isinstance(tables, Table) else tables):
        if number:
            click.echo()
        if form == "table":
            Console(soft_wrap=False).print(table.rich())
            for note in table.notes:
                click.echo(note)
        else:
            click.echo({"md": table.markdown, "csv": table.csv, "latex": table.latex}[form](), nl=False)
