"""`vitattack models list|info`, and the group that pull, check and add belong to."""

from __future__ import annotations

import dataclasses

import click

from .options import output_options
from .weights import add, check, pull


@click.group("models", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """The models of the zoo. timm:ARCH.TAG, hf-hub:OWNER/NAME and checkpoint files need no entry."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(listing, text="", as_json=False, form="table", quiet=False)


for _command in (pull, check, add):
    command.add_command(_command)


@command.command(
    "list",
    epilog="""\b
Examples:
  vitattack models list
  vitattack models list swin            entries with this text in their id, data or summary
  vitattack models list --json
""",
)
@click.argument("text", default="")
@output_options
def listing(text: str, as_json: bool, form: str, quiet: bool) -> None:
    """Every entry with its reported numbers, or those that contain TEXT."""
    from vitattack.models.catalogue import entries
    from vitattack.report.models import listing as table

    from .output import show

    wanted = text.lower()
    found = [e for e in entries().values() if wanted in f"{e.id} {e.dataset} {e.summary}".lower()]
    show(table(found), [dataclasses.asdict(e) for e in found], "json" if as_json else form)


@command.command("info", epilog="Example:  vitattack models info rb/Liu2023Comprehensive_Swin-B")
@click.argument("name")
@output_options
def info(name: str, as_json: bool, form: str, quiet: bool) -> None:
    """One entry in full: architecture, parameters, FLOPs, attention layers, normalisation, numbers with their protocol,
    weights, licence. The weights themselves are not needed.
    """
    from vitattack.errors import UsageError
    from vitattack.models.catalogue import entries
    from vitattack.models.figures import figures
    from vitattack.registry import did_you_mean
    from vitattack.report.models import content, details

    from .output import show

    if name not in entries():
        raise UsageError(did_you_mean("model", name, entries()))
    entry = entries()[name]
    found = figures(entry) if entry.arch is not None else None
    show(details(entry, found), content(entry, found), "json" if as_json else form)
