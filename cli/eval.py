"""`vitattack eval MODEL [ATTACK ...]`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import data_options, data_text, file_options, model_options, option, output_options, run_options, together
from .threat_option import ThreatOption

if TYPE_CHECKING:
    from vitattack.models.zoo.file_options import FileOptions
    from vitattack.records.result import Evaluation
    from vitattack.records.run_index import Finding


def _budget(ctx: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    word, _, number = value.partition("=")
    if word.strip() != "passes" or not number.strip().isdecimal():
        raise click.BadParameter(f"'{value}' is no budget: write passes=1000, forwards and backwards of one sample")
    return int(number)


def with_effort(attacks: tuple[str, ...], budget: int | None, until: str | None) -> tuple[str, ...]:
    """The attacks, `auto` among them with the effort that was asked for."""
    from vitattack.attacks import attack_text
    from vitattack.text.syntax import Call, Node

    asked: dict[str, Node] = {}
    if budget is not None:
        asked["passes"] = budget
    if until is not None:
        asked["until"] = Call(until)
    if not asked:
        return attacks
    if not any(attack_text.names(text, "auto") for text in attacks):
        raise click.UsageError("--budget and --until are for auto: name auto, or give another attack its own steps")
    return tuple(attack_text.with_options(text, "auto", asked) for text in attacks)


@click.command(
    "eval",
    epilog="""\b
Examples:
  vitattack eval                                            tiny-vit, auto, 1,000 images
  vitattack eval tiny-vit pgd "gama(steps=50)" --limit 200  two attacks and their worst case
  vitattack eval tiny-vit "pgd(loss=margin, steps=100)" --threat l2:0.5
  vitattack eval tiny-vit apgd --threat linf:1/255,2/255,4/255,8/255    a curve over budgets
  vitattack eval tiny-vit --precision bf16-search           auto, searching in bfloat16 where gradients agree
  vitattack eval tiny-vit --budget passes=1000              auto, spending 1,000 passes on every survivor
  vitattack eval tiny-vit autoattack --limit 100            AutoAttack's own protocol
  vitattack eval tiny-vit pgd aas+pgd --controls            attention scaling, refereed
  vitattack eval tiny-vit spatial --threat spatial:4.17%,30deg   2,511 shifts and rotations
  vitattack eval ckpt.pt pgd --arch vit_small_patch16_224 --num-classes 100 --normalize imagenet --data folder:val
  vitattack eval tiny-vit pgd --json | jq .worst_case
\b
A run that was stopped goes on with the same command; a finished one prints its stored table.
Every option also reads the variable VITATTACK_<NAME>, such as VITATTACK_DATA_DIR; a flag wins.
""",
)
@click.argument("model", default="tiny-vit")
@click.argument("attacks", nargs=-1, metavar="[ATTACK]...")
@option("--threat", cls=ThreatOption, default="linf:8/255")
@option("--calibration", help="Data set for attacks that learn from other images first.")
@option("--scales", type=click.Path(dir_okay=False), help="Attention scales for aas: JSON, or learned.json of a run.")
@option("--budget", callback=_budget, help="passes=N: auto spends N forwards + backwards on each survivor.")
@option("--until", type=click.Choice(["converged"]), help="auto goes on until a round over all survivors breaks none.")
@option("--precision", default="fp32", help="fp32, or bf16-search: auto searches in bfloat16, fp32 decides.")
@option("--perceptual", is_flag=True, help="Add l2, linf, SSIM and LPIPS of what was made.")
@option("--controls", is_flag=True, help="Run the controls of every aas at equal compute and say if masking is shown.")
@together(data_options, file_options, run_options, output_options)
def command(
    model: str,
    attacks: tuple[str, ...],
    controls: bool,
    budget: int | None,
    until: str | None,
    as_json: bool,
    form: str,
    quiet: bool,
    **given: Any,
) -> None:
    """Attack MODEL with each ATTACK, by default `auto`, and print clean and robust accuracy with 95 % intervals.

    MODEL is a zoo id, timm:ARCH.TAG, hf-hub:OWNER/NAME or a checkpoint file with --arch. ATTACK is a name or a call
    such as gama(steps=50); `vitattack attacks` lists them. An example counts as fooled only if the plain fp32 model
    errs on it twice, inside [0,1] and inside the budget.
    """
    from vitattack.records.run_index import RunIndex

    request = _request(click.get_current_context().params)
    index = RunIndex(Path(given["out"]))
    if not given["fresh"] and given["shard"] == (0, 1) and (finding := index.find(request)):
        _show_stored(finding, controls, quiet, "json" if as_json else form)
        return

    options, scales = model_options(given), given["scales"]
    data = data_text(given.pop("data"), given.pop("limit"), given.pop("subset"), given.pop("indices"))
    _check(model, attacks, options, data, given)

    from vitattack.attacks.aas.controls import control_texts, verdicts, with_bases
    from vitattack.evaluation.evaluate import evaluate
    from vitattack.evaluation.setup import DEFAULT_ATTACK
    from vitattack.threats.base import parse_threats

    from .console import Screen
    from .signals import catch_sigterm

    attacks = with_effort(attacks or (DEFAULT_ATTACK,), budget, until)
    if controls:
        if given["perceptual"]:
            raise click.UsageError("--controls compares runs that count alone: give --perceptual to a run of its own")
        attacks = tuple(with_bases(attacks))
        if len(parse_threats(given["threat"])) > 1:
            raise click.UsageError("--controls compares runs under one budget: give one --threat")
        if given["shard"] != (0, 1):
            raise click.UsageError(
                "--controls needs the whole run: finish the shards, then add --controls without --shard"
            )
    catch_sigterm()
    with Screen(quiet) as screen:
        settings = {"data": data, "options": options, "listener": screen, **given}
        evaluation = evaluate(model, attacks, **settings)
        if controls and evaluation.finished:
            settings = {**settings, "fresh": False, "scales": None}
            evaluation = evaluate(model, control_texts(evaluation), **settings)
    if not evaluation.finished:
        if as_json:
            click.echo(json.dumps({"schema": 1, "shard": list(given["shard"]), "finished": False}))
    else:
        remarks = tuple(verdicts(evaluation)) if controls else ()
        if evaluation.inputs is not None:
            files = (*evaluation.inputs, *([Path(scales)] if scales else []))
            index.note(request, [result.job for result in evaluation.results], files, remarks)
        _show(evaluation, remarks, controls, "json" if as_json else form)


def _check(model: str, attacks: tuple[str, ...], options: FileOptions, data: str, given: dict[str, Any]) -> None:
    """Refuse misspelt names and missing files before torch is imported."""
    from vitattack.attacks.catalogue import ATTACKS, check_names
    from vitattack.data.request import check_data
    from vitattack.evaluation.setup import Setup
    from vitattack.models.zoo.names import check_model_name
    from vitattack.threats.base import parse_threats

    check_model_name(model, options, attacks=ATTACKS)
    for text in attacks:
        check_names(text)
    parse_threats(given["threat"])
    folder = Path(given["data_dir"]) if given["data_dir"] else None
    check_data(data, data_dir=folder, transform=given["transform"])
    Setup(data=data, precision=given["precision"], transform=given["transform"])


def _request(parameters: dict[str, Any]) -> dict[str, Any]:
    """Everything a command says that its numbers hang on."""
    from vitattack.core.runtime import usable_cores

    request = {name: value for name, value in parameters.items() if name not in ("as_json", "form", "quiet")}
    return {**request, "command": "eval", "threads": parameters["threads"] or usable_cores()}


def _show_stored(finding: Finding, controls: bool, quiet: bool, form: str) -> None:
    """A finished run, read from its store."""
    if not quiet:
        for result in finding.evaluation.results:
            click.echo(f"{result.job.attack}: from the store, {result.folder}", err=True)
    _show(finding.evaluation, finding.remarks, controls, form)


def _show(evaluation: Evaluation, remarks: tuple[str, ...], controls: bool, form: str) -> None:
    from vitattack.report.evaluation import tables

    from .output import show

    content = {**evaluation.json(), **({"verdicts": list(remarks)} if controls else {})}
    show(tables(evaluation, remarks), content, form)
