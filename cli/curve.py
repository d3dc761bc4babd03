"""`vitattack curve MODEL...`: the analysis of that name, under a name of its own."""

from __future__ import annotations

from typing import Any

import click

from .analyze import command as analyze
from .options import combined, data_options, file_options, machine_options, option, output_options, store_options
from .suggestions import attacks, models


@click.command(
    "curve",
    epilog="""\b
Examples:
  vitattack curve tiny-vit --norm l2                      robust accuracy at every l2 budget, from one run of fmn
  vitattack curve tiny-vit tiny-vit-standard --norm linf --plot curve.png
  vitattack curve tiny-vit --norm l2 --attack fmn --attack "ddn(steps=200)" --limit 200
  vitattack curve tiny-vit --norm l0 --attack sigma_zero --at 1,5,10,20 --json
""",
)
@click.argument("models", nargs=-1, metavar="[MODEL]...", shell_complete=models)
@option("--norm", type=click.Choice(["linf", "l2", "l1", "l0"]), default="l2", help="The norm; l0 counts pixels.")
@option(
    "--attack",
    "attacks",
    multiple=True,
    shell_complete=attacks,
    help="A minimum-norm attack; several are compared. Default: fmn.",
)
@option("--at", help="Budgets to show, as 0.25,0.5 or 4/255,8/255; default: usual ones of the norm.")
@option("--plot", type=click.Path(dir_okay=False), help="Also draw the curve: FILE.png, .svg or .pdf.")
@combined(data_options, file_options, machine_options, store_options, output_options)
@click.pass_context
def command(
    ctx: click.Context, /, models: tuple[str, ...], norm: str, attacks: tuple[str, ...], at: str | None, **given: Any
) -> None:
    """Print robust accuracy against the budget, from the smallest perturbation of each image that fools MODEL.

    The attacks run once, to the end; an image is robust at a budget if none of them found a smaller perturbation. The same as
    vitattack analyze curve. Without --limit and the like, 100 images are used.
    """
    if not models:
        models = ("tiny-vit",)
    parameters = [f"norm={norm}", *([f"attacks={','.join(attacks)}"] if attacks else []), *([f"at={at}"] if at else [])]
    ctx.invoke(analyze, name="curve", words=(*models, *parameters), threat=None, **given)
