"""The entries of model_zoo.yaml, read and checked; nothing heavy is imported, so that listing models is instant."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from vitattack._assets import ZOO_FILE
from vitattack.errors import UsageError
from vitattack.registry import did_you_mean

SOURCES = ("embedded", "timm", "hf-hub")


@dataclass(frozen=True)
class Weights:
    """Where a checkpoint comes from and what it must hash to."""

    source: str
    file: str | None = None
    sha256: str | None = None
    size: int | None = None
    weights_key: str | None = None
    strip_prefix: str | None = None


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
    values = _checked(item, Entry, where)
    where = f"{where} ({values['id']})"
    if values["weights"] is not None:
        weights = Weights(**_checked(values["weights"], Weights, where))
        if weights.source not in SOURCES:
            raise UsageError(f"{where}: " + did_you_mean("weights source", weights.source, SOURCES))
        if weights.source == "embedded" and not (weights.file and weights.sha256):
            raise UsageError(f"{where}: embedded weights need file and sha256")
        values["weights"] = weights
    values["reported"] = tuple(Reported(**_checked(r, Reported, where)) for r in values.get("reported", []))
    normalize = values.get("normalize")
    if normalize is not None and set(normalize) != {"mean", "std"}:
        raise UsageError(f"{where}: normalize needs mean and std, or null for a model that takes [0,1]")
    return Entry(**values)


def _checked(item: Any, kind: type, where: str) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise UsageError(f"{where}: expected keys and values, found {type(item).__name__}")
    known = {f.name: f for f in fields(kind)}
    for key in item:
        if key not in known:
            raise UsageError(f"{where}: " + did_you_mean("key", str(key), known))
    required = [n for n, f in known.items() if f.default is MISSING and f.default_factory is MISSING]
    absent = [name for name in required if name not in item]
    if absent:
        raise UsageError(f"{where}: {absent[0]} is missing")
    return dict(item)
