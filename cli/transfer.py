"""`vitattack transfer SOURCE... --to TARGET... [ATTACK]`."""

from __future__ import annotations

from typing import Any

import click

from .checks import check_attacks, check_images, check_models, check_threat
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
from .suggestions import models, models_and_attacks


class Listing(click.Command):
    """Reads `--to C D pgd` as `--to C --to D --to pgd`: every word up to the next option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words: list[str] = []
        listing = False
        for at, word in enumerate(args):
            if word == "--to":
                if not args[at + 1 :] or args[at + 1].startswith("-"):
                    raise click.UsageError("--to names no target: write --to tiny-vit", ctx)
                listing = True
            elif word.startswith("-"):
                listing = word.startswith("--to=")
                words.append(word)
            else:
                words += ["--to", word] if listing else [word]
        return super().parse_args(ctx, words)


@click.command(
    "transfer",
    cls=Listing,
    epilog="""\b
Examples:
  vitattack transfer tiny-vit tiny-vit-standard --limit 200     all pairs, pgd(preset=bhojanapalli2021, stop=never)
  vitattack transfer tiny-vit --to tiny-vit-standard tiny-vit-saturated pgd --threat linf:1/255
  vitattack transfer tiny-vit tiny-vit-standard --attack "mim(stop=never)" --format latex
  vitattack transfer tiny-vit-standard --to tiny-cnn-standard --protocol transferattack
  vitattack transfer tiny-vit-standard --to tiny-cnn-standard --protocol transferattack "pna(di(mim(stop=never)))"
  vitattack transfer tiny-vit tiny-vit-standard --json | jq '.cells[] | {source, target, drop}'
\b
The same command resumes a run that was stopped, and prints the stored tables of a finished one.
""",
)
@click.argument("models", nargs=-1, metavar="SOURCE... [ATTACK]", shell_complete=models_and_attacks)
@option(
    "--to",
    multiple=True,
    metavar="TARGET...",
    shell_complete=models,
    help="Models that judge; default: the sources.",
    show_default=False,
)
@option("--attack", help="The attack, if it does not stand last; default: pgd(preset=bhojanapalli2021, stop=never).")
@option("--threat", help="Budget in pixel units: linf:8/255 or l2:0.5; default: linf:8/255.")
@option("--protocol", help="Attack and budget as published: transferattack (mim(stop=never), linf:16/255).")
@option("--calibration", help="Data set for attacks that learn from other images first.")
@combined(data_options, file_options, machine_options, store_options, output_options)
def command(
    models: tuple[str, ...],
    to: tuple[str, ...],
    attack: str | None,
    threat: str | None,
    protocol: str | None,
    as_json: bool,
    form: str,
    quiet: bool,
    **given: Any,
) -> None:
    """Craft once on each SOURCE, judge on every TARGET, and print accuracy, drop and success among joint images.

    Every image is attacked on the source with its true label. The diagonal is the white-box run of `vitattack eval`.
    Between input sizes images and changes are resized, and the cell is marked.
    """
    from vitattack.evaluation.transfer.command_words import split_attack
    from vitattack.evaluation.transfer.protocols import settled

    options = model_options(given)
    data = data_text(given.pop("data"), given.pop("limit"), given.pop("subset"), given.pop("indices"))
    sources, targets, named_attack = split_attack(models, to, attack)
    text, threat = settled(protocol, named_attack, threat)
    check_models([*sources, *targets], options)
    (named,) = check_attacks([text])
    check_threat(threat)
    check_images(data, given["data_dir"], given["transform"])

    from vitattack.evaluation.transfer.study import transfer
    from vitattack.report.transfer import numbers, tables

    from .output import show
    from .progress.eval_progress import EvaluationScreen
    from .signals import catch_sigterm

    catch_sigterm()
    with EvaluationScreen(quiet) as screen:
        matrix = transfer(sources, targets, named, threat=threat, data=data, options=options, listener=screen, **given)
    show(numbers(matrix) if form == "csv" else tables(matrix), matrix.json(), "json" if as_json else form)
