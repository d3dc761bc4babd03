"""`vitattack analyze NAME MODEL...`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .checks import check_images, check_models
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
from .suggestions import analyses, models
from .terminal import say
from .threat_option import ThreatOption

if TYPE_CHECKING:
    from vitattack.analyses.base import Analysis
    from vitattack.analyses.findings import Findings


@click.command(
    "analyze",
    epilog="""\b
Examples:
  vitattack analyze                                           the analyses, a line each
  vitattack analyze info eps-sweep                            one of them, with its parameters
  vitattack analyze eps-sweep tiny-vit tiny-vit-standard --limit 200 --plot sweep.png
  vitattack analyze eps-sweep tiny-vit "attack=apgd(steps=50)" --threat linf:2/255,8/255,32/255
  vitattack analyze corruptions tiny-vit tiny-cnn-standard    17 kinds made of cifar10-demo
  vitattack analyze scatter "*xcit*" --data imagenet --threat linf:4/255 --plot scatter.pdf
  vitattack analyze eps-sweep tiny-vit --json | jq '.rows[] | {eps, accuracy}'
\b
The same command resumes an analysis that was stopped, and prints the stored one when it was finished.
""",
)
@click.argument("name", default="list", shell_complete=analyses)
@click.argument("words", nargs=-1, metavar="[MODEL]... [name=value]...", shell_complete=models)
@option("--threat", cls=ThreatOption, default=None, show_default=False)
@option("--plot", type=click.Path(dir_okay=False), help="Also draw the figure: FILE.png, .svg or .pdf.")
@combined(data_options, file_options, machine_options, store_options, output_options)
def command(
    name: str, words: tuple[str, ...], plot: str | None, as_json: bool, form: str, quiet: bool, **given: Any
) -> None:
    """Put the question NAME of a paper to each MODEL, by default tiny-vit, and print what is found.

    `vitattack analyze list` names the questions. Several models are shown side by side. Parameters are words such as
    attack=apgd; `vitattack analyze info NAME` lists them.
    """
    form = "json" if as_json else form
    if name in ("list", "info"):
        _describe(name, words, form)
        return

    from vitattack.analyses.catalogue import ANALYSES
    from vitattack.analyses.words import bound, check_models_count, split_words
    from vitattack.evaluation.setup import DEFAULT_MODEL, Setup
    from vitattack.report.plots.paper import check_plot

    check_plot(plot)
    kind = ANALYSES[name]
    models, parameters = split_words(words)
    if kind.data is not None and given["data"] == Setup.data:
        given["data"] = kind.data
    models = models or ([] if kind.from_store else [DEFAULT_MODEL])
    analysis = bound(name, kind, parameters)
    check_models_count(name, kind, models)
    data = data_text(given.pop("data"), given.pop("limit"), given.pop("subset"), given.pop("indices"))
    if kind.from_store:
        from vitattack.analyses.landscape.store_run import ask_store

        findings = ask_store(name, models, Path(given["out"]), data, given["threat"], parameters)
    else:
        findings = _found(name, analysis, models, data, parameters, quiet=quiet, **given)
    if plot is not None:
        findings.save_plot(plot)
        say(f"wrote {plot}")

    from vitattack.report.grid import pieces

    from .output import show, terminal_width

    tables = findings.tables()
    if form == "table":  # columns that do not fit the terminal go below the others
        tables = [piece for table in tables for piece in ([table] if table.whole else pieces(table, terminal_width()))]
    show(tables, findings.json(), form)


def _found(
    name: str,
    analysis: Analysis,
    models: list[str],
    data: str,
    parameters: dict[str, str],
    *,
    quiet: bool,
    **given: Any,
) -> Findings:
    """The findings of the same words in the store, else those of a run."""
    from vitattack.analyses.finished import FinishedAnalyses
    from vitattack.analyses.words import budget_of, is_training_run
    from vitattack.evaluation.setup import Setup

    budgets = budget_of(name, type(analysis), given["threat"])
    words = {"analysis": name, "models": models, "parameters": parameters, "budgets": budgets, "data": data}
    request = {**_request(given), **words}
    store = FinishedAnalyses(Path(given["out"]))
    findings = None if given["fresh"] else store.find(request)
    if findings is not None:
        if not quiet:
            say(f"{name}: from the store, {given['out']}")
        return findings
    options = model_options(given)
    check_models([each for each in models if not (analysis.of_runs and is_training_run(each))], options)
    folder = Path(given["data_dir"]) if given["data_dir"] else None
    for text in analysis.data_opened(data, folder):
        check_images(text, given["data_dir"], given["transform"])
    setup = Setup(data=data, options=options, **{key: given[key] for key in given if key != "threat"})
    findings = _computed(name, models, setup, given["threat"], parameters, quiet=quiet)
    store.note(request, findings)
    return findings


def _computed(
    name: str, models: list[str], setup: Any, threat: str | None, parameters: dict[str, str], *, quiet: bool
) -> Findings:
    from vitattack.analyses.analyze import analyze

    from .progress.eval_progress import EvaluationScreen
    from .signals import catch_sigterm

    catch_sigterm()
    with EvaluationScreen(quiet) as screen:
        return analyze(name, models, threat=threat, setup=setup, parameters=parameters, listener=screen)


def _request(given: dict[str, Any]) -> dict[str, Any]:
    """Every option that the numbers depend on."""
    from vitattack.core.runtime import usable_cores

    apart = ("out", "fresh", "threat")
    kept = {key: value for key, value in given.items() if key not in apart}
    return {**kept, "threads": given["threads"] or usable_cores()}


def _describe(name: str, words: tuple[str, ...], form: str) -> None:
    """List the analyses, or one of them with its parameters."""
    from vitattack.report.analyses import analyses_table, analysis_description

    from .output import show

    if name == "list" and words:
        raise click.UsageError(f"list takes no words: write vitattack analyze info {words[0]}")
    if name == "info" and len(words) != 1:
        raise click.UsageError("info describes one analysis: write vitattack analyze info eps-sweep")
    table, content = analysis_description(words[0]) if name == "info" else analyses_table()
    show(table, content, form)
