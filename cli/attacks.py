"""`vitattack attacks list|info`."""

from __future__ import annotations

import click

from .options import output_options
from .suggestions import attacks


@click.group("attacks", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """List the attacks, or describe one with its losses, steps and starts."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_attacks, as_json=False, form="table", quiet=False)


@command.command("list", epilog="Example:  vitattack attacks list --format md")
@output_options
def list_attacks(as_json: bool, form: str, quiet: bool) -> None:
    """List every attack with its price, its paper and the threats it is for."""
    from vitattack.report.attacks import attacks_table

    from .output import show

    table, content = attacks_table()
    show(table, content, "json" if as_json else form)


@command.command("info", epilog="Example:  vitattack attacks info pgd")
@click.argument("name", shell_complete=attacks)
@output_options
def attack_info(name: str, as_json: bool, form: str, quiet: bool) -> None:
    """Describe one attack: its options with their defaults and choices, and its passes per robust sample."""
    from vitattack.attacks.catalogue import check_attack_name

    from .output import show

    check_attack_name(name)

    from vitattack.report.attacks import attack_description  # torch

    table, content = attack_description(name)
    show(table, content, "json" if as_json else form)
