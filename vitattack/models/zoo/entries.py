"""The entries of model_zoo.yaml, read and checked; nothing heavy is imported, so that listing models is instant.

An entry may name a `family`, whose keys it takes over where it has none of its own; the mappings among them
(`weights`, `protocols`, `arch_kwargs`) are merged key by key. `reported` is a list of numbers with all their words,
or a mapping from a name of `protocols` to its value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from vitattack.core.assets import ZOO_FILE
from vitattack.core.errors import UsageError
from vitattack.core.files import cache_home
from vitattack.core.registry import did_you_mean
from vitattack.core.words import printable
from vitattack.models.normalise import NORMALISERS, sound
from vitattack.models.weights.sources import Weights, checked, typed, weights_of
from vitattack.models.zoo.renamed import refuse_former_id

LARGEST = 8 << 20
LARGEST_INPUT = 8192
MOST_VALUES = 1_000_000
MERGED = ("weights", "protocols", "arch_kwargs")


@dataclass(frozen=True)
class Reported:
    """A published or measured number, never without its protocol; n is None where nobody says it."""

    metric: str
    value: float
    n: int | None
    source: str
    protocol: str = ""
    correct: int | None = None


@dataclass(frozen=True)
class Entry:
    """One checkpoint of the zoo, or one model that only its published numbers are known of."""

    id: str
    summary: str
    arch: str | None  # null: cannot be built here, `notes` says why
    num_classes: int
    input: int
    weights: Weights | None
    dataset: str
    arch_kwargs: dict[str, Any] = field(default_factory=dict)
    adapter: tuple[str, ...] = ()
    normalize: dict[str, list[float]] | None = None
    transform: str = "none"
    threat: str | None = None
    reported: tuple[Reported, ...] = ()
    licence: str = "unknown"
    paper: str | None = None
    source: str | None = None  # where the facts of the entry were read
    page: str | None = None  # where a person can fetch weights that no source reaches
    unverified: tuple[str, ...] = ()  # keys that nobody has confirmed
    notes: str | None = None
    recipe: dict[str, Any] = field(default_factory=dict)


def entries(path: Path | None = None) -> dict[str, Entry]:
    """The shipped entries and the user's by id, or those of one file; a mistake is named with its entry and key."""
    if path is not None:
        return _read(path)
    own, shipped = user_file(), _shipped()
    if not own.is_file():
        return shipped
    added = _read(own)
    both = sorted(shipped.keys() & added.keys())
    if both:
        raise UsageError(f"'{both[0]}' in {own} is a model of vitattack: rename yours")
    return {**shipped, **added}


def named(name: str) -> Entry:
    """The entry of an id."""
    known = entries()
    if name not in known:
        refuse_former_id(name, known)
        raise UsageError(did_you_mean("model", name, known))
    return known[name]


def weights_to_fetch(entry: Entry) -> Weights:
    """The weights of an entry, or one line that says why no source has them."""
    if entry.weights is None:
        how = f"--like {entry.id}" if entry.arch else "with --arch and --normalize"
        where = f"fetch them from {entry.page} and give FILE {how}" if entry.page else "choose another model"
        reason = "are not public" if entry.page is None else "have no direct address"
        raise UsageError(f"the weights of '{entry.id}' {reason}, the zoo holds its published numbers: {where}")
    return entry.weights


def search(text: str, dataset: str | None = None) -> list[Entry]:
    """Entries whose id fits a pattern such as rb/*, or which contain a text in their id, data or summary."""
    known = entries().values()
    if dataset is not None and dataset not in (sets := {entry.dataset for entry in known}):
        raise UsageError(did_you_mean("data set of the zoo", dataset, sets))
    wanted = text.lower()
    pattern = wanted if any(c in wanted for c in "*?[") else None

    def fits(entry: Entry) -> bool:
        if pattern is not None:
            return fnmatchcase(entry.id.lower(), pattern)
        return wanted in f"{entry.id} {entry.dataset} {entry.summary}".lower()

    return [entry for entry in known if dataset in (None, entry.dataset) and fits(entry)]


def user_file() -> Path:
    """The user's own zoo, which `vitattack models add` writes."""
    return cache_home() / "models.yaml"


@cache
def _shipped() -> dict[str, Entry]:
    return _read(ZOO_FILE, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def _read(path: Path, Loader: Any = yaml.SafeLoader) -> dict[str, Entry]:
    """The entries of a file; only its own loader in C is fast, and only the one in Python survives deep nesting."""
    try:
        if path.stat().st_size > LARGEST:
            raise UsageError(f"the zoo file {path} is larger than {LARGEST >> 20} MB: it is refused")
        content = yaml.load(path.read_text(), Loader=Loader)  # noqa: S506  # both are safe loaders
        _check_growth(content)
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise UsageError(f"cannot read the zoo file {path}: {printable(str(error), 300)}") from error
    if isinstance(content, dict) and content.get("models", 0) is None:  # its last model was removed by hand
        content["models"] = []
    if not isinstance(content, dict) or content.get("schema") != 1 or not isinstance(content.get("models"), list):
        raise UsageError(f"{path.name} is no zoo file: it needs 'schema: 1' and a list 'models'")
    families = content.get("families", {})
    found: dict[str, Entry] = {}
    for number, item in enumerate(content["models"]):
        entry = entry_of(item, f"{path.name}, model {number + 1}", families)
        if entry.id in found:
            raise UsageError(f"{path.name}: id '{entry.id}' stands twice")
        found[entry.id] = entry
    return found


def _check_growth(content: Any) -> None:
    """A few anchors can stand for more values than memory holds; each use of one counts here."""
    waiting, seen = [content], 0
    while waiting:
        value = waiting.pop()
        seen += 1
        if seen > MOST_VALUES:
            raise ValueError(f"its anchors stand for more than {MOST_VALUES:,} values")
        waiting += list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []


def entry_of(item: Any, where: str, families: Any = None) -> Entry:
    """One model of a zoo file, checked; `where` is how a mistake in it is named."""
    if isinstance(item, dict) and "id" in item:
        where = f"{where} ({printable(str(item['id']), 60)})"
    item = _with_family(item, families, where)
    protocols = item.pop("protocols", {}) if isinstance(item, dict) else {}
    values = checked(item, Entry, where)
    if values["weights"] is not None:
        values["weights"] = weights_of(values["weights"], where)
    values["reported"] = tuple(_reported(values.get("reported") or [], protocols, where))
    values["normalize"] = _normalize(values.get("normalize"), where)
    for key in ("adapter", "unverified"):
        value = values.get(key) or ()
        values[key] = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value
    entry = typed(Entry(**values), where)
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
    if not isinstance(families, dict) or name not in families:
        raise UsageError(f"{where}: " + did_you_mean("family", str(name), families or ()))
    merged = {**families[name], **{key: value for key, value in item.items() if key != "family"}}
    for key in MERGED:
        shared, own = families[name].get(key), item.get(key, {})
        if isinstance(shared, dict) and isinstance(own, dict):
            merged[key] = {**shared, **own}
    return merged


def _reported(given: Any, protocols: Mapping[str, Any], where: str) -> list[Reported]:
    if isinstance(given, dict):
        for name in given:
            if name not in protocols:
                raise UsageError(f"{where}: reported " + did_you_mean("protocol", str(name), protocols))
        given = [{"metric": name, **protocols[name], "value": value} for name, value in given.items()]
    if not isinstance(given, list):
        raise UsageError(f"{where}: reported must be a list, or a mapping from protocols to values")
    return [typed(Reported(**checked(one, Reported, where)), f"{where}: reported") for one in given]


def _normalize(given: Any, where: str) -> dict[str, list[float]] | None:
    if given is None:
        return None
    if isinstance(given, str):
        if given not in NORMALISERS:
            raise UsageError(f"{where}: " + did_you_mean("normalisation", given, NORMALISERS))
        pair = NORMALISERS[given]
        return None if pair is None else {"mean": list(pair[0]), "std": list(pair[1])}
    if not isinstance(given, dict) or set(given) != {"mean", "std"}:
        raise UsageError(f"{where}: normalize needs mean and std, or null for a model that takes [0,1]")
    if not all(isinstance(part, list) for part in given.values()) or not sound(given["mean"], given["std"]):
        raise UsageError(f"{where}: normalize needs mean and std as lists of 1 or 3 numbers, std above 0")
    return given
