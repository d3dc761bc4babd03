"""What was recorded of attacks and data sets for those who must not import torch: embedded/facts.json."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, Optional

from vitattack.core.assets import EMBEDDED
from vitattack.core.errors import VitattackError

FILE = EMBEDDED / "facts.json"


class Kind:
    """Stands for an annotation that names something: an attack, a loss, a start, a rule, a schedule."""


class AnAttack(Kind):
    pass


class ALoss(Kind):
    pass


class AStart(Kind):
    pass


class ARule(Kind):
    pass


class ASchedule(Kind):
    pass


KINDS: dict[str, type[Kind]] = {
    "attack": AnAttack,
    "loss": ALoss,
    "start": AStart,
    "rule": ARule,
    "schedule": ASchedule,
}
PLAIN: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str}


@dataclass(frozen=True)
class Signature:
    """The parameters of something with a name, and what each may hold."""

    parameters: Mapping[str, inspect.Parameter]
    hints: Mapping[str, Any]
    unlisted: bool  # whether it takes options besides
    threats: tuple[str, ...] = ()
    quick: str = ""


@dataclass(frozen=True)
class DataFacts:
    """How large a data set is, and what may follow its name."""

    rows: int
    classes: int
    transform: bool
    parts: tuple[str, ...]
    default: str
    severities: bool
    of_imagenet: bool  # a model of all 1,000 classes may be asked among its classes
    origin: str
    protocol: bool = False


@cache
def _content() -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(FILE.read_text())
    except (OSError, ValueError) as error:
        raise VitattackError(f"cannot read {FILE} ({error}): install vitattack again") from error
    return content


@cache
def attacks() -> Mapping[str, Signature]:
    return MappingProxyType({name: _signature(**said) for name, said in _content()["attacks"].items()})


@cache
def parts(kind: type[Kind]) -> Mapping[str, Signature]:
    """The losses, starts, rules or schedules by name."""
    word = next(word for word, known in KINDS.items() if known is kind)
    return MappingProxyType({name: _signature(parameters=said) for name, said in _content()["parts"][word].items()})


@cache
def data_sets() -> Mapping[str, DataFacts]:
    found = _content()["data"].items()
    return MappingProxyType({name: DataFacts(**{**said, "parts": tuple(said["parts"])}) for name, said in found})


def _signature(parameters: list[dict[str, Any]], threats: list[str] = [], quick: str = "") -> Signature:  # noqa: B006
    named = {}
    for one in parameters:
        kind = inspect._ParameterKind[one["kind"]]
        if kind is not inspect.Parameter.VAR_KEYWORD:
            default = one.get("default", inspect.Parameter.empty)
            named[one["name"]] = inspect.Parameter(one["name"], kind, default=default)
    hints = {one["name"]: _hint(one["hint"]) for one in parameters if "hint" in one}
    return Signature(named, hints, len(named) < len(parameters), tuple(threats), quick)


def _hint(said: Any) -> Any:
    if isinstance(said, str):
        return KINDS.get(said) or PLAIN[said]
    if "one_of" in said:
        choices: Any = tuple(said["one_of"])
        return Literal[choices]
    if "many" in said:
        return tuple.__class_getitem__((_hint(said["many"]), ...))
    return Optional[_hint(said["or_none"])]  # noqa: UP045  # a type made at run time
