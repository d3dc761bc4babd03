"""Resolved settings of an attack as text: every field of everything it is made of, defaults included.

Canonical texts of attacks drop defaults, so that "pgd" is short. A key of stored records needs what "pgd" stood for when
they were made.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from vitattack.models.digest import ATOMS, value_digest


def resolved_settings(value: Any) -> str:
    """One line that is equal for equal settings; what has no readable form is written as a digest."""
    if isinstance(value, ATOMS):
        return repr(value)
    if is_dataclass(value) and not isinstance(value, type):
        inside = ", ".join(f"{field.name}={resolved_settings(getattr(value, field.name))}" for field in fields(value))
        return f"{_type_name(type(value))}({inside})"
    if isinstance(value, tuple | list):
        names = getattr(value, "_fields", ())
        parts = [f"{name}=" for name in names] or [""] * len(value)
        inside = ", ".join(part + resolved_settings(item) for part, item in zip(parts, value, strict=True))
        return f"{_type_name(type(value)) if names else ''}({inside})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(sorted(f"{key!r}: {resolved_settings(item)}" for key, item in value.items())) + "}"
    if isinstance(value, types.FunctionType) and _is_ours(value.__module__) and not value.__closure__:
        return f"{value.__module__}.{value.__qualname__}"
    return f"{type(value).__qualname__} {value_digest(value)[:16]}"


def _type_name(kind: type) -> str:
    """Name of a class; that of another package carries a digest of its code, which has no version that is recorded."""
    return kind.__qualname__ if _is_ours(kind.__module__) else f"{kind.__qualname__}@{value_digest(kind)[:16]}"


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "vitattack"
