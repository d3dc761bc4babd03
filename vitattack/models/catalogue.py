"""The entries of model_zoo.yaml, read and checked; nothing heavy is imported, so that listing models is instant."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from vitattack._assets import ZOO_FILE
from vitattack.errors import UsageError
from vitattack.models.sources import Weights, checked, weights_of


@dataclass(frozen=True)
class Reported:
    """A published or measured accuracy, never without its n and its protocol."""

    metric: str
    value: float
    n: int
    source: str
    protocol: str = ""
    correct: int | None = None


@dataclass(frozen=True)
class Entry:
    """One checkpoint of the zoo."""

    id: str
    summary: str
    arch: str
    num_classes: int
    input: int
    weights: Weights | None
    dataset: str
    arch_kwargs: dict[str, Any] = field(default_factory=dict)
    normalize: dict[str, list[float]] | None = None
    transform: str = "none"
    threat: str | None = None
    reported: tuple[Reported, ...] = ()
    licence: str = "unknown"
    paper: str | None = None
    adapter: str | None = None
    recipe: dict[str, Any] = field(default_factory=dict)


@cache
def entries(path: Path = ZOO_FILE) -> dict[str, Entry]:
    """All entries by id; a mistake in the file is named with its entry and key."""
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(f"cannot read the zoo file {path}: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or content.get("schema") != 1 or not isinstance(content.get("models"), list):
        raise UsageError(f"{path.name} is no zoo file: it needs 'schema: 1' and a list 'models'")
    found: dict[str, Entry] = {}
    for number, item in enumerate(content["models"]):
        entry = _entry(item, f"{path.name}, model {number + 1}")
        if entry.id in found:
            raise UsageError(f"{path.name}: id '{entry.id}' stands twice")
        found[entry.id] = entry
    return found


def _entry(item: Any, where: str) -> Entry:
    values = checked(item, Entry, where)
    where = f"{where} ({values['id']})"
    if values["weights"] is not None:
        values["weights"] = weights_of(values["weights"], where)
    values["reported"] = tuple(Reported(**checked(r, Reported, where)) for r in values.get("reported", []))
    normalize = values.get("normalize")
    if normalize is not None and set(normalize) != {"mean", "std"}:
        raise UsageError(f"{where}: normalize needs mean and std, or null for a model that takes [0,1]")
    return Entry(**values)
