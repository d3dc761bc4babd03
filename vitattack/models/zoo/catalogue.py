"""The models that have a name: the entries of model_zoo.yaml and of the user's own zoo file.

Torch is not imported, and a shipped entry is checked when it is first asked for, so that one name costs one check.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping
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
from vitattack.models.zoo.entry import ZooEntry, parse_entry
from vitattack.models.zoo.renamed import refuse_former_id
from vitattack.text.yaml_lines import FAST_LOADER, LOADER, is_schema, yaml_failure

LARGEST_FILE = 8 << 20  # bytes
MOST_VALUES = 1_000_000  # after anchors are expanded


class ZooFile(Mapping[str, ZooEntry]):
    """The entries of a zoo file by id, each checked on first access."""

    def __init__(self, path: Path, Loader: Any = LOADER) -> None:
        content = _read_yaml(path, Loader)
        self._families = content.get("families", {})
        self._items: dict[str, tuple[Any, str]] = {}
        self._entries: dict[str, ZooEntry] = {}
        for number, item in enumerate(content["models"]):
            where = f"{path.name}, model {number + 1}"
            id_ = item.get("id") if isinstance(item, dict) else None
            if not isinstance(id_, str):
                id_ = parse_entry(item, where, self._families).id  # says what is missing
            if id_ in self._items:
                raise UsageError(f"{path.name}: id '{printable(id_, 60)}' stands twice")
            self._items[id_] = item, where

    def __getitem__(self, id_: str) -> ZooEntry:
        if id_ not in self._entries:
            item, where = self._items[id_]
            self._entries[id_] = parse_entry(item, where, self._families)
        return self._entries[id_]

    def __contains__(self, id_: object) -> bool:
        return id_ in self._items

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


def zoo_entries() -> Mapping[str, ZooEntry]:
    """Return the shipped entries and the user's by id."""
    own, shipped = user_zoo_file(), shipped_entries()
    if not own.is_file():
        return shipped
    added = read_zoo_file(own)
    both = sorted(shipped.keys() & added.keys())
    if both:
        raise UsageError(f"'{both[0]}' in {own} is a model of vitattack: rename yours")
    return ChainMap(added, shipped)  # type: ignore[arg-type]  # nobody writes to it


@cache
def shipped_entries() -> Mapping[str, ZooEntry]:
    """Return the entries of model_zoo.yaml."""
    # The loader in C is fast; only the one in Python survives deep nesting, which files of users may have.
    return ZooFile(ZOO_FILE, FAST_LOADER)


def read_zoo_file(path: Path) -> dict[str, ZooEntry]:
    """Read a zoo file and check all of its entries; a mistake is reported with its entry and key."""
    return dict(ZooFile(path))


def zoo_entry(id_: str) -> ZooEntry:
    """Return the entry of an id; raise a UsageError with suggestions if there is none."""
    known = zoo_entries()
    if id_ not in known:
        refuse_former_id(id_, known)
        raise UsageError(did_you_mean("model", id_, known))
    return known[id_]


def search_zoo(text: str, dataset: str | None = None) -> list[ZooEntry]:
    """Return entries whose id matches a pattern such as rb/*, or that contain a text in their id, data or summary."""
    known = zoo_entries().values()
    if dataset is not None and dataset not in (sets := {entry.dataset for entry in known}):
        raise UsageError(did_you_mean("data set of the zoo", dataset, sets))
    wanted = text.lower()
    pattern = wanted if any(c in wanted for c in "*?[") else None

    def matches(entry: ZooEntry) -> bool:
        if pattern is not None:
            return fnmatchcase(entry.id.lower(), pattern)
        return wanted in f"{entry.id} {entry.dataset} {entry.summary}".lower()

    return [entry for entry in known if dataset in (None, entry.dataset) and matches(entry)]


def user_zoo_file() -> Path:
    """Return the path of the user's own zoo, which `vitattack models add` writes."""
    return cache_home() / "models.yaml"


def _read_yaml(path: Path, Loader: Any) -> dict[str, Any]:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise UsageError(f"the zoo file {path} is larger than {LARGEST_FILE >> 20} MB: it is refused")
        content = yaml.load(path.read_text(), Loader=Loader)  # noqa: S506  # nosec B506  # both are safe loaders
        _check_growth(content)
    except yaml.YAMLError as error:
        raise UsageError(f"cannot read the zoo file {path}: {yaml_failure(error)}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"cannot read the zoo file {path}: {printable(str(error), 300)}") from error
    if isinstance(content, dict) and content.get("models", 0) is None:  # the last model was removed by hand
        content["models"] = []
    if (
        not isinstance(content, dict)
        or not is_schema(content.get("schema"))
        or not isinstance(content.get("models"), list)
    ):
        raise UsageError(f"{path.name} is no zoo file: it needs 'schema: 1' and a list 'models'")
    return content


def _check_growth(content: Any) -> None:
    """Refuse content whose anchors expand to more values than memory holds; every use of an anchor counts."""
    waiting, seen = [content], 0
    while waiting:
        value = waiting.pop()
        seen += 1
        if seen > MOST_VALUES:
            raise ValueError(f"its anchors stand for more than {MOST_VALUES:,} values")
        waiting += list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
