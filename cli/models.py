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
        ctx.invoke(listing, as_json=False, form="table", quiet=False)


for _command in (pull, check, add):
    command.add_command(_command)


@command.command("list", epilog="Example:  vitattack models list --json")
@output_options
def listing(as_json: bool, form: str, quiet: bool) -> None:
    """Every entry with its reported numbers."""
    from vitattack.models.cache import whereabouts
    from vitattack.models.catalogue import entries
    from vitattack.report.table import Table

    from .output import show

    rows = []
    for entry in entries().values():
        numbers = "; ".join(f"{r.metric} {r.value:.1f} % (n = {r.n})" for r in entry.reported)
        where = whereabouts(entry.weights, entry.id)
        rows.append((entry.id, entry.dataset, entry.threat or "-", numbers, where, entry.summary))
    keys = ("id", "data", "trained for", "reported", "weights", "what it is")
    table = Table("models of the zoo", keys, rows, left=6)
    show(table, [dataclasses.asdict(e) for e in entries().values()], "json" if as_json else form)


@command.command("info", epilog="Example:  vitattack models info tiny-vit")
@click.argument("name")
@output_options
def info(name: str, as_json: bool, form: str, quiet: bool) -> None:
    """One entry in full: architecture, weights and their hash, normalisation, numbers with their protocol, recipe."""
    from vitattack.errors import UsageError
    from vitattack.models.cache import whereabouts
    from vitattack.models.catalogue import entries
    from vitattack.registry import did_you_mean
    from vitattack.report.table import Table

    from .output import show

    if name not in entries():
        raise UsageError(did_you_mean("model", name, entries()))
    entry = entries()[name]
    content = {**dataclasses.asdict(entry), "whereabouts": whereabouts(entry.weights, name)}
    rows = [(key, _text(value)) for key, value in content.items() if value not in (None, {}, ())]
    show(Table(name, ("", ""), rows, left=2), content, "json" if as_json else form)


def _text(value: object) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{key}: {inner}" for key, inner in value.items() if inner is not None)
    if isinstance(value, list | tuple):
        return "\n".join(_text(item).replace("\n", ", ") for item in value)
    return str(value)
