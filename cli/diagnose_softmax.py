"""`vitattack diagnose-softmax MODEL`."""

from __future__ import annotations

from typing import Any

import click

from .checks import check_images, check_models, code_as_model
from .options import (
    combined,
    data_options,
    data_text,
    file_options,
    machine_options,
    model_options,
    option,
    output_options,
)
from .suggestions import models


@click.command(
    "diagnose-softmax",
    epilog="""\b
Examples:
  vitattack diagnose-softmax                                     tiny-vit on the embedded images
  vitattack diagnose-softmax tiny-vit-standard --limit 200 --plot gaps.pdf
  vitattack diagnose-softmax timm:xcit_nano_12_p8_224.fb_in1k --data folder:imagenet/val --limit 100
  vitattack diagnose-softmax tiny-vit --scales runs/.../learned.json --plot before-and-after.png
  vitattack diagnose-softmax tiny-vit --json | jq '.layers[] | {name, verdict}'
\b
saturated: more than 1 % of the rows have a gap above 16.6, where fp32 rounds the largest weight to 1.
underflow: more than 0.1 % have one above 87.3, where the other weights leave the normal numbers of fp32.
""",
)
@click.argument("model", default="tiny-vit", shell_complete=models)
@option("--gradient-images", type=click.IntRange(1), default=64, help="Images whose gradients are compared with fp64.")
@option("--plot", type=click.Path(dir_okay=False), help="Gap histograms per block: FILE.png, .svg or .pdf.")
@option("--scales", type=click.Path(dir_okay=False), help="Diagnose again under these attention scales (learned.json).")
@combined(data_options, file_options, machine_options, output_options)
def command(
    model: str, plot: str | None, scales: str | None, as_json: bool, form: str, quiet: bool, **given: Any
) -> None:
    """Report per block and head whether the attention softmax of MODEL saturates or underflows.

    Gaps are those between the two highest scores of a row, from fp64 products of the q and k of the fp32 forward.
    Whether that matters to an attack is read from the input gradient, in fp32 and bf16 against fp64.
    """
    model, extra = code_as_model(model, (), given)
    options = model_options(given)
    if extra:
        raise click.UsageError(f"'{extra[0]}' is no checkpoint file: drop it, or name one")
    data = data_text(given.pop("data"), given.pop("limit"), given.pop("subset"), given.pop("indices"))
    check_models([model], options)
    check_images(data, given["data_dir"], given["transform"])

    from vitattack.diagnostics.diagnose import diagnose
    from vitattack.report import diagnosis as report
    from vitattack.report.plots.paper import check_plot

    from .output import show
    from .progress.bars import counting_bar

    check_plot(plot)
    with counting_bar("diagnose-softmax", quiet) as watch:
        diagnosis = diagnose(model, data, options=options, watch=watch, **given)
    after = None
    if scales is not None:
        with counting_bar("under the scales", quiet) as watch:
            after = diagnose(model, data, options=options, watch=watch, scales=scales, **given)
    if plot is not None:
        report.plot(diagnosis, plot, after)
    content = {**diagnosis.json(), **({"after": after.json()} if after else {})}
    shape = report.numbers if form == "csv" else report.table
    show([shape(d) for d in (diagnosis, after) if d is not None], content, "json" if as_json else form)
