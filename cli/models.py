"""`vitattack models list|info`, and the group of `pull`, `check` and `add`."""

from __future__ import annotations

import click

from .model_weights import add, check, pull
from .options import output_options
from .suggestions import models


@click.group("models", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """List, describe, fetch, check or add models of the zoo. timm:ARCH.TAG, hf:OWNER/NAME, folders and files need no entry."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_models, text="", data=None, cached=False, as_json=False, form="table", quiet=False)


for _command in (pull, check, add):
    command.add_command(_command)


@command.command(
    "list",
    epilog="""\b
Examples:
  vitattack models list
  vitattack models list swin               entries with this text in their id, data or summary
  vitattack models list 'rb/*' --data cifar10
  vitattack models list --cached           what can be attacked without the network
  vitattack models list --json
""",
)
@click.argument("text", default="", shell_complete=models)
# No environment variable: VITATTACK_DATA names the images of an evaluation.
@click.option("--data", help="Only those trained for this data set, such as cifar10.")
@click.option("--cached", is_flag=True, help="Only those whose weights are on this machine.")
@output_options
def list_models(text: str, data: str | None, cached: bool, as_json: bool, form: str, quiet: bool) -> None:
    """List entries with their reported numbers: all, those that contain TEXT, or ids that match a pattern such as 'rb/*'."""
    from vitattack.models.zoo.catalogue import search_zoo
    from vitattack.report.models import is_local, zoo_table

    from .output import show

    entries = search_zoo(text, data)
    table, content = zoo_table(filter(is_local, entries) if cached else entries)
    show(table, content, "json" if as_json else form)


@command.command("info", epilog="Example:  vitattack models info rb/Liu2023Comprehensive_Swin-B")
@click.argument("name", shell_complete=models)
@output_options
def model_info(name: str, as_json: bool, form: str, quiet: bool) -> None:
    """Describe one entry in full: architecture, parameters, FLOPs, attention layers, normalisation, numbers with their protocol,
    weights, licence. The weights themselves are not needed.
    """
    from vitattack.models.zoo.catalogue import zoo_entry
    from vitattack.models.zoo.figures import figures_of

    entry = zoo_entry(name)
    figures = figures_of(entry)
    if figures is None and entry.arch is not None:
        from vitattack.models.zoo.count_figures import count_figures  # torch, for a model that was not recorded

        figures = count_figures(entry)
    from vitattack.report.models import entry_json, entry_table

    from .output import show

    show(entry_table(entry, figures), entry_json(entry, figures), "json" if as_json else form)
