"""Recipes as YAML: the shipped ones, files with a `base`, and `key=value` changes from the command line."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, Literal

from vitattack.core.assets import RECIPES
from vitattack.core.errors import UsageError
from vitattack.core.registry import did_you_mean
from vitattack.core.words import names_a_file, printable
from vitattack.text import yaml_lines
from vitattack.train.recipe import Recipe

MAX_BASES = 5
SUFFIXES = (".yaml", ".yml")


def shipped_recipes() -> dict[str, Path]:
    """Recipe files that come with vitattack, by name."""
    return {path.stem: path for path in sorted(RECIPES.glob("*.yaml"))}


def recipe_keys(text: str, changes: Sequence[str] = ()) -> dict[str, Any]:
    """The keys of a recipe by name or YAML file with changes applied in order, `values` and `then` among them.

    NAME stands for benchmarks/train/NAME.yaml. A change is `key=value`, or a YAML file whose keys override the recipe's.
    """
    content = _with_bases(text, MAX_BASES)
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals and change.endswith(SUFFIXES):
            overrides = _read_keys(Path(change))
            if "base" in overrides:
                raise UsageError(f"'{change}' has a base of its own: train it alone, or drop its line base")
            content |= overrides
            continue
        if not equals:
            raise UsageError(f"'{printable(change)}' does not change a recipe: write key=value, such as epochs=20")
        key = key.strip()
        values, outer, inner = content.get("values"), *key.partition(".")[::2]
        if isinstance(values, dict) and key in values:
            content["values"] = {**values, key: split_at_outer_commas(value)}
        elif outer == "then" and inner and isinstance(content.get("then"), dict):
            content["then"] = {**content["then"], inner: _parse_change(inner, value)}
        else:
            content[key] = _parse_change(key, value)
    return content


def recipe_from_json(content: Mapping[str, Any]) -> Recipe:
    """Build a recipe from its keys, as YAML or `Recipe.json` gives them; every mistake is named with its key."""
    name = printable(str(content.get("name")))
    known = [f.name for f in fields(Recipe)]
    for key in content:
        if key not in known:
            raise UsageError(f"recipe '{name}': " + did_you_mean("key", printable(str(key)), known))
    hints = _type_hints()
    return Recipe(**{key: _checked(name, key, value, hints[key]) for key, value in content.items()})


def _with_bases(text: str, depth: int) -> dict[str, Any]:
    """The keys of a file laid over those of its `base`, recursively."""
    path = Path(text) if text.endswith(SUFFIXES) else shipped_recipes().get(text)
    if path is None:
        raise UsageError(did_you_mean("recipe", printable(text), [*shipped_recipes(), "FILE.yaml"]))
    content = dict(_read_shipped(path) if path.parent == RECIPES else _read_keys(path))
    base = content.pop("base", None)
    if base is None:
        return {"name": path.stem, **content}
    if not isinstance(base, str) or depth == 0:
        raise UsageError(f"'{path.name}': base is the name of another recipe, and chains of them are short")
    beside = path.parent / f"{base}.yaml"
    base_text = str(beside) if not base.endswith(SUFFIXES) and names_a_file(beside) else base
    below = _with_bases(base_text, depth - 1)
    for key in ("then", "values"):
        if isinstance(below.get(key), dict) and isinstance(content.get(key), dict):
            content[key] = {**below[key], **content[key]}
    return {**below, "name": path.stem, **content}


@cache
def _read_shipped(path: Path) -> dict[str, Any]:
    """Keys of a shipped file, read once although many recipes share a base."""
    return _read_keys(path)


def _read_keys(path: Path) -> dict[str, Any]:
    content = yaml_lines.load_yaml(path, "recipe").plain
    if not isinstance(content, dict):
        raise UsageError(f"'{path.name}' is not a recipe: write keys and values, such as objective: trades(beta=6)")
    if not yaml_lines.is_schema(content.pop("schema", 1)):
        raise UsageError(f"'{path.name}' is written for another version of vitattack: this one reads schema: 1")
    return content


def _parse_change(key: str, value: str) -> Any:
    """Convert a typed value to YAML's types; a list of calls is split at its outer commas only."""
    hint = _type_hints().get(key)
    if hint is str:
        return value
    if hint == tuple[str, ...]:
        return split_at_outer_commas(value)
    return yaml_lines.parse_yaml(value, printable(f"{key}=...")).plain


def split_at_outer_commas(value: str) -> list[str]:
    """The items of a list, in brackets or without; commas inside calls do not count."""
    inner = value.strip().removeprefix("[").removesuffix("]")
    cuts = [at for at, c in enumerate(inner) if c == "," and inner[:at].count("(") == inner[:at].count(")")]
    items = [inner[a + 1 : b].strip() for a, b in zip([-1, *cuts], [*cuts, len(inner)], strict=True)]
    return [item for item in items if item]


@cache
def _type_hints() -> dict[str, Any]:
    return typing.get_type_hints(Recipe)


def _checked(name: str, key: str, value: Any, hint: Any) -> Any:
    """The value converted to the type its key declares, or an error that says which type that is."""
    origin, choices = typing.get_origin(hint), typing.get_args(hint)
    if hint == str | None:
        if value is None:
            return None
        hint = str
    if origin is Literal and value in choices:
        return value
    if hint is str and isinstance(value, str):
        return value
    if hint is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if hint is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            return float(value)  # YAML reads 1e-3 as a string
        except (ValueError, OverflowError):
            pass
    if origin is tuple:
        items = value if isinstance(value, list) else [] if value is None else [value]
        item_type: Any = str if choices[0] is str else Mapping
        if all(isinstance(item, item_type) for item in items):
            return tuple(items)
    if origin is Mapping and isinstance(value, dict) and all(isinstance(k, str) for k in value):
        return value
    raise UsageError(f"recipe '{name}': {key} is {_type_in_words(hint)}, not {printable(repr(value), 60)}")


def _type_in_words(hint: Any) -> str:
    origin, choices = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return " or ".join(map(str, choices))
    if origin is tuple:
        return "a list of texts" if choices[0] is str else "a list of keys and values"
    return {str: "a text", int: "a whole number", float: "a number"}.get(hint, "keys and values")
