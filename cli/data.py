"""`vitattack data list|info`."""

from __future__ import annotations

from pathlib import Path

import click

from .options import option, output_options
from .suggestions import data_sets

data_dir = option("--data-dir", type=click.Path(file_okay=False), help="Folder that holds the sets' files.")


@click.group("data", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """List the data sets and protocols, or describe one. folder:PATH and npz:PATH need no entry."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_data, data_dir=None, as_json=False, form="table", quiet=False)


@command.command("list", epilog="Example:  vitattack data list --data-dir DATA")
@data_dir
@output_options
def list_data(data_dir: str | None, as_json: bool, form: str, quiet: bool) -> None:
    """List every data set and protocol with its size and source."""
    from vitattack.report.data import data_table

    from .output import show

    table, content = data_table(Path(data_dir) if data_dir else None)
    show(table, content, "json" if as_json else form)


@command.command(
    "info",
    epilog="""\b
Examples:
  vitattack data info cifar10-demo
  vitattack data info robustbench-imagenet-5k           its images, preprocessing and source
  vitattack data info imagenet-c/fog/3 --data-dir DATA  with the files: sizes, digest, images per class
""",
)
@click.argument("name", shell_complete=data_sets)
@data_dir
@output_options
def data_info(name: str, data_dir: str | None, as_json: bool, form: str, quiet: bool) -> None:
    """Describe a data set or protocol; if its files are available, with size, digest and images per class."""
    from vitattack.report.data import data_description

    from .output import show

    table, content = data_description(name, Path(data_dir) if data_dir else None)
    show(table, content, "json" if as_json else form)
