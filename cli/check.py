"""`vitattack check MODEL`."""

from __future__ import annotations

import sys
from typing import Any

import click

from .checks import check_images, check_models, check_threat
from .options import (
    combined,
    data_options,
    data_text,
    file_options,
    machine_options,
    model_options,
    option,
    output_options,
    store_options,
)
from .suggestions import models
from .threat_option import ThreatOption


@click.command(
    "check",
    epilog="""\b
Examples:
  vitattack check                                       tiny-vit on 256 of the embedded images
  vitattack check tiny-vit --claim 38.5                 does 38.5 % at linf 8/255 hold?
  vitattack check tiny-vit --claim 41/128 --limit 128   and 41 robust ones of the first 128 images?
  vitattack check tiny-vit --threat l2:0.5 --limit 64
  vitattack check mine.safetensors --arch small:tiny_vit_32 --normalize cifar10 --claim 56.1 || echo "not so"
  vitattack check tiny-vit --json | jq '.verdict, .certificate'
\b
Exit code: 0 holds, 3 does not hold, 4 cannot tell. docs/check.md says how to read the table.
""",
)
@click.argument("model", default="tiny-vit", shell_complete=models)
@option(
    "--claim",
    metavar="PERCENT|COUNT/IMAGES",
    help="The claimed robust accuracy; a count is of the very images checked.",
)
@option("--threat", cls=ThreatOption, default="linf:8/255")
@option("--explain", is_flag=True, help="Also print what each check asks, and the source of its threshold.")
@combined(data_options, file_options, machine_options, store_options, output_options)
def command(model: str, claim: str | None, explain: bool, as_json: bool, form: str, quiet: bool, **given: Any) -> None:
    """Check whether MODEL is as robust as claimed, and whether the attack was able to tell.

    `auto` runs on all images, small attacks and measurements on 32 that are classified correctly, and on 64 models with a planted
    adversarial example `auto` has to find it. Without --claim the number that `auto` finds is checked. Without --limit
    and the like, 256 images are used.
    """
    claimed = None if claim is None else _claimed(claim)
    options = model_options(given)
    limit, subset, indices = given.pop("limit"), given.pop("subset"), given.pop("indices")
    text = given.pop("data")
    if not (limit or subset or indices or text.endswith("]")):
        limit = 256
    data = data_text(text, limit, subset, indices)
    check_models([model], options)
    if check_threat(given["threat"]) > 1:
        raise click.UsageError("a check is of one budget: give one --threat")
    check_images(data, given["data_dir"], given["transform"])

    from vitattack.checks.check import check
    from vitattack.report import check as report

    from .output import show
    from .progress.eval_progress import EvaluationScreen
    from .signals import catch_sigterm

    catch_sigterm()
    with EvaluationScreen(quiet) as screen:
        checked = check(model, claim=claimed, data=data, options=options, listener=screen, **given)
    tables = [*report.tables(checked), *([report.details(checked)] if explain else [])]
    show(tables, checked.json(), "json" if as_json else form)
    sys.exit(checked.verdict.exit_code)


def _claimed(text: str) -> float | str:
    """A count as it is, a percentage as a share."""
    if "/" in text:
        return text
    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = -1.0
    if not 0 <= percent <= 100:
        raise click.UsageError(f"'{text}' is no robust accuracy: write --claim 56.1 for 56.1 %, or --claim 41/128")
    if 0 < percent < 1:
        raise click.UsageError(f"a claim of {percent:g} % is surely meant as a share: write {100 * percent:g}")
    return percent / 100
