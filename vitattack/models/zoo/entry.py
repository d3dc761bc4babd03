"""One entry of a zoo file: a checkpoint, how to build its model, and the numbers reported for it.

An entry may name a `family` and inherits the keys that it does not set; the mappings among them (`weights`,
`protocols`, `arch_kwargs`) are merged key by key. `reported` is a list of complete records, or a mapping from names
in `protocols` to values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vitattack.core.errors import UsageError
from vitattack.core.registry import did_you_mean
from vitattack.core.words import printable
from vitattack.models.normalise import NORMALISERS, is_normaliser
from vitattack.models.weights.sources import WeightSources, parse_weights
from vitattack.text.validate import check_keys, check_types

LARGEST_INPUT = 8192
MERGED_KEYS = ("weights", "protocols", "arch_kwargs")


@dataclass(frozen=True)
class Reported:
    """A published or measured number with its protocol; n is None where the source does not state it."""

    metric: str
    value: float
    n: int | None
    source: str
    protocol: str = ""
    correct: int | None = None


@dataclass(frozen=True)
class ZooEntry:
    """One checkpoint of the zoo, or a model known by its published numbers alone."""

    id: str
    summary: str
    arch: str | None  # None: this version cannot build it, `notes` says why
    num_classes: int
    input: int
    weights: WeightSources | None
    dataset: str
    arch_kwargs: dict[str, Any] = field(default_factory=dict)
    adapter: tuple[str, ...] = ()
    normalize: dict[str, list[float]] | None = None
    transform: str = "none"
    threat: str | None = None
    reported: tuple[Reported, ...] = ()
    licence: str = "unknown"
    paper: str | None = None
    source: str | None = None  # document the entry was compiled from
    page: str | None = None  # web page with weights that have no direct address
    unverified: tuple[str, ...] = ()  # keys that have not been confirmed
    notes: str | None = None
    recipe: dict[str, Any] = field(default_factory=dict)


def weights_to_fetch(entry: ZooEntry) -> WeightSources:
    """Return the sources of an entry's weights; raise a UsageError if there are none to download from."""
    if entry.weights is None:
        how = f"--like {entry.id}" if entry.arch else "with --arch and --normalize"
        where = f"fetch them from {entry.page} and give FILE {how}" if entry.page else "choose another model"
        reason = "are not public" if entry.page is None else "have no direct address"
        raise UsageError(f"the weights of '{entry.id}' {reason}, the zoo holds its published numbers: {where}")
    return entry.weights


def parse_entry(item: Any, where: str, families: Any = None) -> ZooEntry:
    """Check one model of a zoo file; error messages locate mistakes by `where`."""
    if isinstance(item, dict) and "id" in item:
        where = f"{where} ({printable(str(item['id']), 60)})"
    item = _with_family(item, families, where)
    protocols = (item.pop("protocols", None) if isinstance(item, dict) else None) or {}
    if not isinstance(protocols, dict) or not all(isinstance(protocol, dict) for protocol in protocols.values()):
        raise UsageError(f"{where}: protocols must map names to keys and values")
    values = check_keys(item, ZooEntry, where)
    if values["weights"] is not None:
        values["weights"] = parse_weights(values["weights"], where)
    values["reported"] = tuple(_parse_reported(values.get("reported") or [], protocols, where))
    values["normalize"] = _parse_normalize(values.get("normalize"), where)
    for key in ("adapter", "unverified"):
        value = values.get(key) or ()
        values[key] = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value
    entry = check_types(ZooEntry(**values), where)
    if not entry.id or "\n" in entry.id:
        raise UsageError(f"{where}: id must be one line of text")
    if entry.num_classes < 1 or not 1 <= entry.input <= LARGEST_INPUT:
        raise UsageError(f"{where}: num_classes must be 1 or more, input 1 to {LARGEST_INPUT} px")
    if values["arch"] is None and values["weights"] is not None and not values.get("notes"):
        raise UsageError(f"{where}: without arch, notes must say why it cannot be built")
    return entry


def _with_family(item: Any, families: Any, where: str) -> Any:
    if not isinstance(item, dict) or "family" not in item:
        return item
    name = item["family"]
    known = families if isinstance(families, dict) else {}
    if not isinstance(name, str) or name not in known:
        raise UsageError(f"{where}: " + did_you_mean("family", str(name), map(str, known)))
    family = known[name]
    if not isinstance(family, dict):
        raise UsageError(f"{where}: the family '{printable(name, 60)}' must be keys and values")
    merged = {**family, **{key: value for key, value in item.items() if key != "family"}}
    for key in MERGED_KEYS:
        shared, own = family.get(key), item.get(key, {})
        if isinstance(shared, dict) and isinstance(own, dict):
            merged[key] = {**shared, **own}
    return merged


def _parse_reported(given: Any, protocols: Mapping[str, Any], where: str) -> list[Reported]:
    if isinstance(given, dict):
        for name in given:
            if name not in protocols:
                raise UsageError(f"{where}: reported " + did_you_mean("protocol", str(name), map(str, protocols)))
        given = [{"metric": name, **protocols[name], "value": value} for name, value in given.items()]
    if not isinstance(given, list):
        raise UsageError(f"{where}: reported must be a list, or a mapping from protocols to values")
    return [check_types(Reported(**check_keys(one, Reported, where)), f"{where}: reported") for one in given]


def _parse_normalize(given: Any, where: str) -> dict[str, list[float]] | None:
    if given is None:
        return None
    if isinstance(given, str):
        if given not in NORMALISERS:
            raise UsageError(f"{where}: " + did_you_mean("normalisation", given, NORMALISERS))
        pair = NORMALISERS[given]
        return None if pair is None else {"mean": list(pair[0]), "std": list(pair[1])}
    if not isinstance(given, dict) or set(given) != {"mean", "std"}:
        raise UsageError(f"{where}: normalize needs mean and std, or null for a model that takes [0,1]")
    if not all(isinstance(part, list) for part in given.values()) or not is_normaliser(given["mean"], given["std"]):
        raise UsageError(f"{where}: normalize needs mean and std as lists of 1 or 3 numbers, std above 0")
    return given
