"""`vitattack verify ADV MODEL`."""

from __future__ import annotations

import sys
from pathlib import Path
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
    "verify",
    epilog="""\b
Examples:
  vitattack verify adv.npz tiny-vit --threat linf:8/255                 x_adv and label, in the order of the data
  vitattack verify adv.safetensors tiny-vit --limit 100 --with last     and the worst case with a stored run
  vitattack verify pngs/ tiny-vit                                       000417.png is the example of image 417
  vitattack verify runs/tiny-vit-pgd-linf-8-255-1b2c3d4e5f607182 tiny-vit-standard    saved examples on another model
  vitattack verify adv.npz ckpt.pt --arch vit_small_patch16_224 --normalize imagenet --data folder:val --json
\b
An array named index holds the rows of the images; without one there has to be an example of every image, in order.
""",
)
@click.argument("adv", type=click.Path())
@click.argument("model", shell_complete=models)
@option("--threat", cls=ThreatOption, default="linf:8/255")
@click.option(
    "--with", "against", multiple=True, metavar="RUN", help="Merge into the worst case of this stored run. Repeatable."
)
@click.option("--save-adv", is_flag=True, help="Keep the examples beside their records.")
@combined(data_options, file_options, machine_options, store_options, output_options)
def command(
    adv: str,
    model: str,
    threat: str,
    against: tuple[str, ...],
    as_json: bool,
    form: str,
    quiet: bool,
    **given: Any,
) -> None:
    """Judge adversarial examples ADV that were made elsewhere on MODEL: range, budget, rounding to 8 bits, labels, success.

    ADV is a .safetensors or .npz file, a folder of PNGs or a stored run with examples. The verdicts are stored as a run of
    their own. Exit code 1 if anything is wrong with an example.
    """
    from vitattack.records.stored_runs import find_run

    options = model_options(given)
    data = data_text(given.pop("data"), given.pop("limit"), given.pop("subset"), given.pop("indices"))
    check_models([model], options)
    if check_threat(threat) > 1:
        raise click.UsageError("examples are checked against one budget: give one --threat")
    check_images(data, given["data_dir"], given["transform"])
    if not Path(adv).exists():
        raise click.UsageError(f"there are no examples at '{adv}': name a .safetensors or .npz file, a folder or a run")
    stored = [find_run(Path(given["out"]), text).result for text in against]

    from vitattack.evaluation.verify import verify
    from vitattack.report.verification import verification_tables

    from .output import show
    from .progress.eval_progress import EvaluationScreen
    from .signals import catch_sigterm

    catch_sigterm()
    with EvaluationScreen(quiet):
        verification = verify(adv, model, threat=threat, against=stored, data=data, options=options, **given)
    show(verification_tables(verification), verification.json(), "json" if as_json else form)
    if verification.refuted:
        sys.exit(1)
