"""Requests to an analysis, checked without torch: parameters as `name=value` or Python values, models, budgets."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitattack.analyses.base import Analysis
from vitattack.core.errors import UsageError
from vitattack.core.registry import did_you_mean
from vitattack.core.words import printable
from vitattack.models.hugging_face.folder import names_a_folder
from vitattack.text.bind import ArgumentBinder
from vitattack.text.syntax import Node, parse_syntax
from vitattack.threats.base import parse_threats


class _Values(ArgumentBinder):
    """Binds values alone: no parameter of an analysis is a name with arguments."""

    attack = None
    kinds: tuple[Any, ...] = ()


def split_words(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Models, and parameters by name: a word is a parameter if an identifier stands before its first `=`."""
    models: list[str] = []
    given: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name.isidentifier():
            models.append(word)
            continue
        if name in given:
            raise UsageError(f"{printable(name)} is given twice: give it once")
        given[name] = value.strip()
    return models, given


def bound(name: str, kind: type[Analysis], given: Mapping[str, Any]) -> Analysis:
    """An analysis with these parameters; texts are parsed unless the parameter is a text itself."""
    known, hints = kind.parameters(), _hints(kind)
    values = {}
    for parameter, value in given.items():
        if parameter not in known:
            if not known:
                raise UsageError(f"{name} has no parameters: drop {printable(parameter)}")
            raise UsageError(did_you_mean(f"parameter of {name}", printable(parameter), known))
        values[parameter] = _value(parameter, value, hints[parameter])
    return kind(**values)


def _value(parameter: str, value: Any, hint: Any) -> Any:
    """A parameter's value; of those with several, one alone counts as a list of one."""
    text = printable(f"{parameter}={value}")
    several = typing.get_origin(hint) is tuple
    if isinstance(value, str) and several and typing.get_args(hint)[0] is str:
        value = tuple(outer_commas(value))
    elif isinstance(value, str) and hint not in (str, str | None):
        value = _node(value, text)
    if several and not isinstance(value, tuple):
        value = tuple(value) if isinstance(value, list) else (value,)
    return _Values(text).value(value, hint, parameter)[0]


def _node(value: str, text: str) -> Node:
    if value in ("true", "false"):
        return value == "true"
    try:
        return parse_syntax(value)
    except UsageError:
        raise UsageError(f"'{text}' cannot be read: write a number, a word or several with commas") from None


def outer_commas(text: str) -> list[str]:
    """The parts of a text between the commas that stand in no brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def _hints(kind: type[Analysis]) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def is_training_run(model: str) -> bool:
    """Whether a model is the folder of a training run, or of anything that is no model itself."""
    return names_a_folder(model) and not (Path(model) / "config.json").exists()


def check_models_count(name: str, kind: type[Analysis], models: Sequence[str]) -> None:
    """Refuse fewer or more models than the analysis is of, and one named twice."""
    if len(set(models)) < len(models):
        raise UsageError("a model is named twice: name each once")
    if len(models) < kind.fewest:
        raise UsageError(f"{name} compares models: name at least {kind.fewest}")
    if kind.most is not None and len(models) > kind.most:
        raise UsageError(f"{name} takes {kind.most} model{'s' * (kind.most > 1)}, not {len(models)}: name fewer")


def budget_of(name: str, kind: type[Analysis], threat: str | None) -> str:
    """The budgets of an analysis in canonical words; refuses some where nothing is attacked."""
    if kind.threat is None:
        if threat is not None:
            raise UsageError(f"{name} attacks nothing: drop --threat")
        return ""
    return ",".join(map(str, parse_threats(threat or kind.threat)))
