"""Completions of a word in the shell: names of what a command takes there, and files where none fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem

Names = Callable[[click.Context], Iterable[str]]


def suggest(
    names: Names, *, files: bool = False
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """The `shell_complete` of an option or argument: the names that begin like the word, else `files` if it may be a path."""

    def complete(ctx: click.Context, parameter: click.Parameter, word: str) -> list[CompletionItem]:
        try:
            found = [CompletionItem(name) for name in names(ctx) if name.startswith(word)]
        except Exception:  # noqa: BLE001  # a broken zoo file is no reason to write into the user's prompt
            found = []
        return found or ([CompletionItem(word, type="file")] if files else [])

    return complete


def _models(ctx: click.Context) -> Iterable[str]:
    from vitattack.models.zoo.catalogue import zoo_entries

    return sorted(zoo_entries())


def _attacks(ctx: click.Context) -> Iterable[str]:
    from vitattack.attacks.catalogue import ATTACKS

    return ATTACKS


def _data(ctx: click.Context) -> Iterable[str]:
    from vitattack.data.catalogue import DATA_SETS
    from vitattack.data.protocols import PROTOCOLS

    return [*DATA_SETS, *PROTOCOLS, "folder:", "npz:"]


def _analyses(ctx: click.Context) -> Iterable[str]:
    from vitattack.analyses.catalogue import ANALYSES

    return ["list", "info", *ANALYSES]


def _benchmarks(ctx: click.Context) -> Iterable[str]:
    from vitattack.bench.read.benchmark_file import shipped_benchmarks

    return shipped_benchmarks()


def _recipes(ctx: click.Context) -> Iterable[str]:
    from vitattack.train.recipe_file import shipped_recipes

    return shipped_recipes()


def _runs(ctx: click.Context) -> Iterable[str]:
    from pathlib import Path

    from vitattack.records.stored_runs import stored_runs

    return ["last", *(run.short for run in stored_runs(Path(str(ctx.params.get("out") or "runs"))))]


models = suggest(_models, files=True)
attacks = suggest(_attacks)
models_and_attacks = suggest(lambda ctx: [*_models(ctx), *_attacks(ctx)], files=True)
data_sets = suggest(_data, files=True)
analyses = suggest(_analyses)
benchmarks = suggest(_benchmarks, files=True)
recipes = suggest(_recipes, files=True)
runs = suggest(_runs, files=True)
models_attacks_and_runs = suggest(lambda ctx: [*_models(ctx), *_attacks(ctx), *_runs(ctx)], files=True)
