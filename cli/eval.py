"""`vitattack eval MODEL [ATTACK ...]`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from .checks import check_attacks, check_images, check_models, check_threat, code_as_model
from .options import combined, data_options, data_text, file_options, model_options, option, output_options, run_options
from .suggestions import models, models_and_attacks
from .terminal import say, write
from .threat_option import ThreatOption

if TYPE_CHECKING:
    from vitattack.core.file_hashes import Marks
    from vitattack.models.zoo.file_options import FileOptions
    from vitattack.records.result import Evaluation
    from vitattack.records.run_index import Finding, RunIndex
    from vitattack.text.syntax import AttackSyntax


def _budget(ctx: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    word, _, number = value.partition("=")
    if word.strip() != "passes" or not number.strip().isdecimal():
        raise click.BadParameter(f"'{value}' is no budget: write passes=1000, forwards and backwards of one sample")
    return int(number)


def _with_effort(attacks: tuple[AttackSyntax, ...], budget: int | None, until: str | None) -> tuple[AttackSyntax, ...]:
    """The attacks, with the requested effort for `auto`."""
    from vitattack.text.syntax import Call, Node

    options: dict[str, Node] = {}
    if budget is not None:
        options["passes"] = budget
    if until is not None:
        options["until"] = Call(until)
    if not options:
        return attacks
    if not any(attack.calls("auto") for attack in attacks):
        raise click.UsageError("--budget and --until are for auto: name auto, or give another attack its own steps")
    return tuple(attack.with_options("auto", options) for attack in attacks)


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
  vitattack eval tiny-vit apgd --threat linf:8/255+l2:0.5+l1:12   a union: the worst norm for every image
  vitattack eval tiny-vit spatial --threat spatial:4.17%,30deg   2,511 shifts and rotations
  vitattack eval ckpt.pt pgd --arch vit_small_patch16_224 --num-classes 100 --normalize imagenet --data folder:val
  vitattack eval tiny-vit tiny-vit-standard pgd             two models, and their comparison image by image
  vitattack eval tiny-vit auto --limit 128 --check          auto's number, and whether it can be believed
  vitattack eval tiny-vit pgd --save-adv                    keep the adversarial images beside the records
  vitattack eval my-vit/ auto --data folder:val             a Hugging Face transformers folder
  vitattack eval model.py:make_model auto --normalize none  a class or function of your own; runs your code
  vitattack eval ckpt.pth pgd --model-from model.py:ViT --normalize cifar10
  vitattack eval hf:google/vit-base-patch16-224 pgd --data imagenet --threat linf:4/255
  vitattack eval tiny-vit pgd --json | jq .worst_case
\b
The same command resumes a run that was stopped, and prints the stored table of a finished one.
Every option also reads the variable VITATTACK_<NAME>, such as VITATTACK_DATA_DIR; a flag wins.
""",
)
@click.argument("model", default="tiny-vit", shell_complete=models)
@click.argument("attacks", nargs=-1, metavar="[MODEL]... [ATTACK]...", shell_complete=models_and_attacks)
@option("--threat", cls=ThreatOption, default="linf:8/255")
@option("--calibration", help="Data set for attacks that learn from other images first.")
@option("--scales", type=click.Path(dir_okay=False), help="Attention scales for aas: JSON, or learned.json of a run.")
@option("--budget", callback=_budget, help="passes=N: auto spends N forwards + backwards on each survivor.")
@option("--until", type=click.Choice(["converged"]), help="auto goes on until a round over all survivors breaks none.")
@option("--precision", default="fp32", help="fp32, or bf16-search: auto searches in bfloat16, fp32 decides.")
@option(
    "--certificate/--no-certificate", default=True, help="Whether auto has to find planted examples, and says how many."
)
@option("--check", is_flag=True, help="Add the checks of vitattack check to the result of auto.")
@option("--perceptual", is_flag=True, help="Add l2, linf, SSIM and LPIPS of the candidates.")
@option("--controls", is_flag=True, help="Run the controls of every aas at equal compute and say if masking is shown.")
@option("--save-adv", is_flag=True, help="Keep x_adv, label, prediction and index in safetensors files of the run.")
@option("--save-png", is_flag=True, help="Keep them also as PNGs, rounded to 8 bits.")
@combined(data_options, file_options, run_options, output_options)
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

    MODEL is a zoo id, timm:ARCH.TAG, hf:OWNER/NAME, a folder of save_pretrained, FILE.py:NAME or a checkpoint file with --arch;
    several are compared. ATTACK is a name or a call such as gama(steps=50); `vitattack attacks` lists them. An example
    counts as fooled only if the plain fp32 model errs on it twice, inside [0,1] and inside the budget.
    """
    from vitattack.records.run_index import Finding, RunIndex

    form = "json" if as_json else form
    models, attacks = _split(*code_as_model(model, attacks, given))
    index, request = RunIndex(Path(given["out"])), _request(click.get_current_context().params)
    requests = {name: {**request, "model": name, "attacks": attacks} for name in models}
    finished = {name: finding for name in models if (finding := _stored(index, requests[name], given))}
    if not quiet:
        for finding in finished.values():
            _say_where(finding)
    if len(finished) < len(models):
        words = _Words(attacks, budget, until, controls, quiet)
        for name, evaluation, remarks, files in _computed(
            [m for m in models if m not in finished], models, words, given
        ):
            if not evaluation.finished:
                continue
            finished[name] = Finding(evaluation, remarks)
            if files is not None:
                index.note(requests[name], [result.job for result in evaluation.results], files, remarks)
    if len(finished) < len(models):
        if as_json:
            write(json.dumps({"schema": 1, "shard": list(given["shard"]), "finished": False}))
        return
    _show([finished[name] for name in models], controls, form)


class _Words(NamedTuple):
    """Words of the command that concern the attacks on every model."""

    attacks: tuple[str, ...]
    budget: int | None
    until: str | None
    controls: bool
    quiet: bool


def _split(model: str, words: tuple[str, ...]) -> tuple[list[str], tuple[str, ...]]:
    """The models at the head of the words, and the attacks behind them."""
    from vitattack.attacks.catalogue import ATTACKS
    from vitattack.evaluation.transfer.command_words import is_attack
    from vitattack.models.zoo.names import looks_like_model, refuse_misspelt_model

    more = list(takewhile(lambda word: not is_attack(word) and looks_like_model(word), words))
    models = [model, *more]
    for word in words[len(more) :]:
        refuse_misspelt_model(word, ATTACKS)
    if len(set(models)) < len(models):
        raise click.UsageError("a model is named twice: name each once")
    return models, words[len(more) :]


def _computed(
    models: Sequence[str], every: Sequence[str], words: _Words, given: dict[str, Any]
) -> Iterator[tuple[str, Evaluation, tuple[str, ...], Marks | None]]:
    """Evaluations of the models that have none in the store, with remarks and, where they can be listed, the files read."""
    from vitattack.core.file_hashes import marks_of
    from vitattack.models.zoo.names import options_by_model

    options, scales = model_options(given), given["scales"]
    of_model = {every[0]: options} if len(every) == 1 else options_by_model(every, options)
    named_files = marks_of([Path(scales)] if scales else [])
    data = data_text(given.pop("data"), given.pop("limit"), given.pop("subset"), given.pop("indices"))
    for model in models:
        named = _check(model, words.attacks, of_model[model], data, given, controls=words.controls)
    named = _with_effort(named, words.budget, words.until)

    from vitattack.attacks.aas.controls import masking_verdicts, with_bases, with_controls
    from vitattack.evaluation.evaluate import evaluate

    from .progress.eval_progress import EvaluationScreen
    from .signals import catch_sigterm

    if words.controls:
        named = tuple(with_bases(named))
    catch_sigterm()
    for model in models:
        with EvaluationScreen(words.quiet, model if len(every) > 1 else "") as screen:
            settings = {"data": data, "options": of_model[model], "listener": screen, **given}
            evaluation = evaluate(model, named, **settings)
            if words.controls and evaluation.finished:
                settings = {**settings, "fresh": False, "scales": None}
                evaluation = evaluate(model, with_controls(evaluation), **settings)
        remarks = tuple(masking_verdicts(evaluation)) if words.controls and evaluation.finished else ()
        files = None if evaluation.inputs is None else {**evaluation.inputs, **named_files}
        yield model, evaluation, remarks, files


def _check(
    model: str, attacks: tuple[str, ...], options: FileOptions, data: str, given: dict[str, Any], *, controls: bool
) -> tuple[AttackSyntax, ...]:
    """Refuse misspelt names, missing files and options that exclude each other before torch is imported."""
    from vitattack.evaluation.setup import DEFAULT_ATTACK, Setup

    check_models([model], options)
    named = check_attacks(attacks or (DEFAULT_ATTACK,))
    budgets = check_threat(given["threat"])
    check_images(data, given["data_dir"], given["transform"])
    Setup(data=data, precision=given["precision"])
    if controls and given["perceptual"]:
        raise click.UsageError("--controls compares runs that count alone: give --perceptual to a run of its own")
    if controls and budgets > 1:
        raise click.UsageError("--controls compares runs under one budget: give one --threat")
    if controls and given["shard"] != (0, 1):
        raise click.UsageError("--controls needs the whole run: finish the shards, then add --controls without --shard")
    return named


def _request(parameters: dict[str, Any]) -> dict[str, Any]:
    """Every parameter of a command that its numbers depend on."""
    from vitattack.core.runtime import usable_cores

    apart = ("as_json", "form", "quiet", "save_adv", "save_png")
    request = {name: value for name, value in parameters.items() if name not in apart}
    threads = parameters["threads"]
    return {**request, "command": "eval", "threads": threads or usable_cores(), "threads_chosen": threads is None}


def _stored(index: RunIndex, request: dict[str, Any], given: dict[str, Any]) -> Finding | None:
    """A finished run with the examples that are asked for; writes the images, which are made from them."""
    finding = index.find(request) if not given["fresh"] and given["shard"] == (0, 1) else None
    if finding is None or not (given["save_adv"] or given["save_png"]):
        return finding
    from vitattack.records.saved_examples import has_all_examples, write_images

    folders = [result.folder for result in finding.evaluation.results if result.folder]
    if not all(map(has_all_examples, folders)):
        return None
    for folder in folders if given["save_png"] else ():
        write_images(folder)
    return finding


def _say_where(finding: Finding) -> None:
    for result in finding.evaluation.results:
        say(f"{result.job.attack}: from the store, {result.folder}")


def _show(findings: Sequence[Finding], controls: bool, form: str) -> None:
    """The tables of every model and, of several, their comparison."""
    from vitattack.report.evaluation import tables

    from .output import show

    shown = [table for finding in findings for table in tables(finding.evaluation, finding.remarks)]
    contents = [{**f.evaluation.json(), **({"verdicts": list(f.remarks)} if controls else {})} for f in findings]
    if len(findings) == 1:
        show(shown, contents[0], form)
        return
    from vitattack.records.comparison import Side, compared
    from vitattack.report.comparison import comparison_tables

    comparison = compared([Side(f.evaluation.job.model, f.evaluation.results) for f in findings])
    content = {"schema": 1, "evaluations": contents, "comparison": comparison.json()}
    show([*shown, *comparison_tables(comparison)], content, form)
