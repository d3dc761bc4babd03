"""`vitattack compare A B [...]`."""

from __future__ import annotations

from pathlib import Path

import click

from .options import option, output_options
from .suggestions import models_attacks_and_runs


@click.command(
    "compare",
    epilog="""\b
Examples:
  vitattack compare tiny-vit tiny-vit-standard         two models, attack by attack and in the worst case
  vitattack compare pgd auto                           two attacks on every model that met both
  vitattack compare 239a1e56 77b0c2d1 d3de44aa         runs by their keys, all against the first
  vitattack compare runs other/runs                    two stores, run by run
  vitattack compare tiny-vit tiny-vit-standard --threat linf:8/255 --json | jq .rows[0].contrasts
""",
)
@click.argument("sides", nargs=-1, required=True, metavar="A B...", shell_complete=models_attacks_and_runs)
@option(
    "--out",
    default="runs",
    type=click.Path(file_okay=False),
    help="The store where names and keys are looked for.",
)
@click.option("--threat", help="Only runs under this budget.")
@click.option("--data", help="Only runs on this data set, as `vitattack runs` writes it.")
@output_options
def command(
    sides: tuple[str, ...], out: str, threat: str | None, data: str | None, as_json: bool, form: str, quiet: bool
) -> None:
    """Compare stored runs on the same images: paired differences with intervals and McNemar's test, who flipped, and the costs.

    A side is a run (its key, its folder or `last`), a model, an attack or a store; all are compared with the first.
    Nothing is computed anew and torch is not loaded.
    """
    from vitattack.records.comparison import compared
    from vitattack.records.comparison_words import sides_of
    from vitattack.report.comparison import comparison_tables

    from .output import show

    if len(sides) < 2:
        raise click.UsageError("a comparison needs two sides: name another run, model, attack or store")
    comparison = compared(sides_of(sides, Path(out), threat, data))
    show(comparison_tables(comparison), comparison.json(), "json" if as_json else form)
