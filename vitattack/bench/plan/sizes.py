"""Sizes of the models of a benchmark: recorded for the zoo, counted for timm's models and for files and folders of the user."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from vitattack.bench.cells import Cell
from vitattack.core.errors import VitattackError
from vitattack.models.zoo.catalogue import zoo_entries
from vitattack.models.zoo.entry import ZooEntry
from vitattack.models.zoo.figures import ModelFigures, figures_of
from vitattack.models.zoo.names import looks_like_model, runs_code

if TYPE_CHECKING:
    from vitattack.models.victim import Victim


@dataclass(frozen=True)
class SizedModel:
    """A model whose parameters and FLOPs are known, and how to build it without fetching weights."""

    figures: ModelFigures
    build: Callable[[], Victim]


def sized_model(cell: Cell) -> SizedModel | None:
    """The model of a cell with its size; None where it is unknown or only code of the user would tell."""
    entry = entry_of(cell)
    if entry is not None:
        figures = figures_of(entry)
        return None if figures is None else SizedModel(figures, lambda: _of_entry(entry))
    return _counted(cell.model, json.dumps(dict(cell.options), sort_keys=True))


def entry_of(cell: Cell) -> ZooEntry | None:
    """Zoo entry of a model's size; for a file the entry it is read like, or one of the same architecture."""
    zoo = zoo_entries()
    if cell.model in zoo:
        return zoo[cell.model]
    if "like" in cell.options:
        return zoo.get(str(cell.options["like"]))
    arch = cell.options.get("arch")
    shape = _shape(arch, cell.options.get("arch_kwargs", {}))
    return next((entry for entry in zoo.values() if arch and _shape(entry.arch, entry.arch_kwargs) == shape), None)


def _shape(arch: Any, arch_kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Arguments that determine the size of a model; the number of classes hardly does."""
    return arch, {key: value for key, value in arch_kwargs.items() if key != "num_classes"}


def _of_entry(entry: ZooEntry) -> Victim:
    from vitattack.models.zoo.load import build_victim

    return build_victim(entry)


@cache
def _counted(model: str, options: str) -> SizedModel | None:
    """A model outside the zoo, built and counted once; one that cannot be built is refused before a run, with the reason."""
    given = json.loads(options)
    if runs_code(model, given) or not looks_like_model(model):
        return None
    from vitattack.models.zoo.count_figures import count_size

    try:
        victim = _of_timm(model) if model.startswith("timm:") else _of_machine(model, given)
        return None if victim is None else SizedModel(count_size(victim), lambda: victim)
    except VitattackError:
        return None


def _of_machine(model: str, given: dict[str, Any]) -> Victim | None:
    """The model of a file or folder, read from there."""
    import torch

    from vitattack.models.zoo.file_options import FileOptions
    from vitattack.models.zoo.load import load_model
    from vitattack.models.zoo.names import check_model_name

    options = FileOptions(**given)
    kind = check_model_name(model, options)
    return load_model(model, torch.device("cpu"), options).victim if kind in ("file", "folder") else None


def _of_timm(model: str) -> Victim | None:
    """A model of timm with random weights at the size it was trained for."""
    import timm

    from vitattack.models.victim import Victim

    name = model.partition(":")[2]
    if not timm.is_model(name):
        return None
    built: Any = timm.create_model(name, pretrained=False)
    height, width = built.pretrained_cfg["input_size"][-2:]
    return Victim(built.eval(), name=model, num_classes=built.num_classes, input_size=(height, width))
