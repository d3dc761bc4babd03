"""Checks of values read from a file against the fields and types of a dataclass."""

from __future__ import annotations

import sys
from dataclasses import MISSING, fields
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from vitattack.core.errors import UsageError
from vitattack.core.registry import did_you_mean
from vitattack.core.words import printable

T = TypeVar("T")
LARGEST_NUMBER = sys.float_info.max  # whole numbers beyond it fail wherever they meet others
Names = dict[str, str]  # fields that are called differently in the file


def check_keys(item: Any, kind: type, where: str, names: Names | None = None) -> dict[str, Any]:
    """Return a mapping as keyword arguments of a dataclass; raise a UsageError that names an unknown or missing key."""
    if not isinstance(item, dict):
        raise UsageError(f"{where}: expected keys and values, found {type(item).__name__}")
    known = {field.name: field for field in fields(kind)}
    names = names or {}
    for key in item:
        if key not in known:
            raise UsageError(f"{where}: " + did_you_mean("key", str(key), [names.get(name, name) for name in known]))
    required = [name for name, f in known.items() if f.default is MISSING and f.default_factory is MISSING]
    absent = [name for name in required if name not in item]
    if absent:
        raise UsageError(f"{where}: {names.get(absent[0], absent[0])} is missing")
    return dict(item)


def check_types(value: T, where: str, names: Names | None = None) -> T:
    """Return a dataclass whose values have the declared types and whose texts can be printed on a terminal."""
    kind: Any = type(value)
    hints = _hints(kind)
    for field in fields(kind):
        content = getattr(value, field.name)
        if not _has_type(content, hints[field.name]):
            shown = (names or {}).get(field.name, field.name)
            wanted = "printable text" if isinstance(content, str) and "str" in str(field.type) else field.type
            raise UsageError(f"{where}: {shown} is {printable(repr(content), 40)}, where {wanted} belongs")
    return value


_hints = cache(get_type_hints)


def _has_type(value: Any, hint: Any) -> bool:
    kind, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return not isinstance(value, str) or _has_type(value, str)
    if kind in (Union, UnionType):
        return any(_has_type(value, option) for option in inner)
    if kind is dict:
        return isinstance(value, dict) and all(
            _has_type(k, inner[0]) and _has_type(v, inner[1]) for k, v in value.items()
        )
    if kind in (list, tuple):
        return isinstance(value, kind) and all(_has_type(item, inner[0]) for item in value)
    if hint in (int, float):
        number = isinstance(value, int if hint is int else int | float) and not isinstance(value, bool)
        return number and abs(value) <= LARGEST_NUMBER
    if hint is str:
        return isinstance(value, str) and all(c.isprintable() or c == "\n" for c in value)
    return isinstance(value, hint)


LARGEST_SEED = 2**63 - 1  # of torch and numpy alike


def check_seed(seed: int, where: str = "") -> None:
    """Refuse a seed that random generators do not take."""
    if not 0 <= seed <= LARGEST_SEED:
        raise UsageError(f"{where}seed is a whole number from 0 on and below 2**63: seed {seed} is out of range")
