"""`vitattack data list|info`."""

from __future__ import annotations

from pathlib import Path

import click

from .options import option, output_options

data_dir = option("--data-dir", type=click.Path(file_okay=False), help="Folder that holds the hub's files.")


@click.group("data", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """The data sets that can be named. folder:PATH and npz:PATH need no entry."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(listing, data_dir=None, as_json=False, form="table", quiet=False)


@command.command("list", epilog="Example:  vitattack data list --data-dir DATA")
@data_dir
@output_options
def listing(data_dir: str | None, as_json: bool, form: str, quiet: bool) -> None:
    """Every data set with its size and where it would come from."""
    from vitattack.data.catalogue import CATALOGUE
    from vitattack.report.table import Table

    from .output import show

    folder = Path(data_dir) if data_dir else None
    rows = [
        (name, f"{entry.rows}", f"{entry.num_classes}", entry.where(folder), entry.summary)
        for name, entry in CATALOGUE.items()
    ]
    keys = ("name", "images", "classes", "where", "what it is")
    show(
        Table("data sets", keys, rows, left=5),
        [dict(zip(keys, row, strict=True)) for row in rows],
        "json" if as_json else form,
    )


@command.command("info", epilog="Example:  vitattack data info cifar10-demo")
@click.argument("name")
@data_dir
@output_options
def info(name: str, data_dir: str | None, as_json: bool, form: str, quiet: bool) -> None:
    """One data set, opened: images, classes, image size, digest, images per class."""
    from vitattack.report.data import describe

    from .output import show

    table, content = describe(name, Path(data_dir) if data_dir else None)
    show(table, content, "json" if as_json else form)
