"""`vitattack models pull|check|add`."""

from __future__ import annotations

import sys
from typing import Any

import click

from .options import combined, compute_options, file_options, model_options, option, output_options, unsafe_option
from .suggestions import models


@click.command(
    "pull",
    epilog="""\b
Examples:
  vitattack models pull rb/Debenedetti2022Light_XCiT-S12/cifar10
  VITATTACK_HOME=/data/vitattack vitattack models pull tiny-vit --json
""",
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=models)
@unsafe_option
@output_options
def pull(names: tuple[str, ...], unsafe_pickle: bool, as_json: bool, form: str, quiet: bool) -> None:
    """Fetch the weights of NAME..., check them, and keep them as safetensors.

    Sources are tried in order, and an interrupted download is resumed. Size and sha256 are checked before
    anything is parsed; where the zoo has no sha256, that of the first download is kept in a lock file and required
    from then on. Everything is kept in VITATTACK_HOME, by default in the cache folder of the platform.
    """
    from vitattack.models.zoo.catalogue import zoo_entry
    from vitattack.models.zoo.entry import weights_to_fetch

    wanted = {name: weights_to_fetch(zoo_entry(name)) for name in names}  # refuse a typo before torch is imported

    from vitattack.models.weights.fetch import fetch_file, weights_origin
    from vitattack.report.model_weights import pulled_table

    from .output import show

    files = {name: fetch_file(weights, name=name, unsafe=unsafe_pickle) for name, weights in wanted.items()}
    table, content = pulled_table(files, {name: weights_origin(weights, name) for name, weights in wanted.items()})
    show(table, content, "json" if as_json else form)


@click.command(
    "check",
    epilog="""\b
Examples:
  vitattack models check tiny-vit
  vitattack models check rb/Mo2022When_ViT-B --data folder:imagenet/val --limit 500
""",
)
@click.argument("name", shell_complete=models)
@option("--data", help="Images to compare on; default: of its data set, if they are on this machine.")
@option("--limit", type=click.IntRange(1), default=200, help="How many of them, drawn at random.")
@option("--data-dir", type=click.Path(file_okay=False), help="Folder that holds the hub's files, for work offline.")
@combined(compute_options, output_options)
@unsafe_option
def check(name: str, as_json: bool, form: str, quiet: bool, **given: Any) -> None:
    """Check the hash of NAME, load it strictly, and compare its clean accuracy on a few images with the reported one.

    Exits with 1 if the two differ by more than chance allows.
    """
    from vitattack.models.zoo.catalogue import zoo_entry
    from vitattack.models.zoo.entry import weights_to_fetch

    weights_to_fetch(zoo_entry(name))  # a typo is answered before torch is imported

    from vitattack.evaluation.zoo_check import check_zoo_model
    from vitattack.report.model_weights import check_table

    from .output import show

    checked = check_zoo_model(name, **given)
    show(check_table(checked), checked.json(), "json" if as_json else form)
    if checked.fits is False:
        sys.exit(1)


@click.command(
    "add",
    epilog="""\b
Examples:
  vitattack models add mine ckpt.pth.tar --arch vit_small_patch16_224 --normalize imagenet --weights-key state_dict
  vitattack models add theirs https://host/w.pth --arch xcit_small_12_p16_224 --normalize none --trained-for linf:4/255
  vitattack models add mine cifar.pt --arch vit_tiny_patch4_32 --normalize cifar10 --dataset cifar10 --clean 91.2/10000
""",
)
@click.argument("name")
@click.argument("source")
@option("--dataset", default="imagenet", help="Data set the model was trained for.")
@option("--summary", default="added by the user", help="What it is, in a few words.")
@option("--trained-for", help="Threat it was trained against, such as linf:8/255.")
@option("--transform", default="none", help="How image files are cut for it, such as bicubic256crop224.")
@option("--clean", metavar="PERCENT/N", help="Its clean accuracy and on how many images, for models check.")
@option("--licence", default="unknown", help="Licence of the weights.")
@combined(file_options, output_options)
def add(name: str, source: str, as_json: bool, form: str, quiet: bool, **given: Any) -> None:
    """Register a checkpoint as NAME in a zoo file of your own (models.yaml in VITATTACK_HOME).

    SOURCE is a file, or one of https://..., hf-hub:OWNER/NAME[@REVISION][/FILE], github:OWNER/REPO@TAG/FILE, gdrive:ID,
    nextcloud:https://HOST/s/TOKEN[/PATH]. The weights are fetched and loaded strictly before anything is written.
    """
    from vitattack.core.table import Table
    from vitattack.models.zoo.catalogue import user_zoo_file
    from vitattack.models.zoo.user_entries import About, add_entry, parse_clean_accuracy
    from vitattack.report.models import plain_entry

    from .output import show

    options = model_options(given)
    clean = given.pop("clean")
    about = About(**given, clean=parse_clean_accuracy(clean) if clean else None)
    entry = add_entry(name, source, options, about)
    rows = [("arch", str(entry.arch)), ("classes", str(entry.num_classes)), ("input", f"{entry.input} px")]
    table = Table(f"{name}, in {user_zoo_file()}", ("", ""), rows, left=2)
    show(table, {"schema": 1, **plain_entry(entry)}, "json" if as_json else form)
