"""What a plan has to know and only torch can tell, as plain data: signatures of attacks, sizes of data sets.

`python benchmarks/record_facts.py` writes it to embedded/facts.json, `facts` reads it, and a test compares the two.
"""

from __future__ import annotations

import inspect
import json
import types
import typing
from collections.abc import Callable
from typing import Any, Literal

from vitattack.attacks import attack_text
from vitattack.attacks.base import Attack
from vitattack.attacks.catalogue import ATTACKS
from vitattack.attacks.gradient.starts import Start
from vitattack.attacks.gradient.steps import Schedule, StepRule
from vitattack.attacks.losses import AnyLoss
from vitattack.data.catalogue import DATA_SETS
from vitattack.data.protocols import PROTOCOLS

WORDS: dict[Any, str] = {Attack: "attack", AnyLoss: "loss", Start: "start", StepRule: "rule", Schedule: "schedule"}
PLAIN: dict[Any, str] = {int: "int", float: "float", bool: "bool", str: "str"}


def attacks() -> dict[str, Any]:
    """Every attack that ships with vitattack: its threats and parameters. Those of plug-ins are their own."""
    return {
        name: {
            "threats": list(ATTACKS[name].kinds),
            "quick": ATTACKS[name].quick,
            "parameters": parameters(ATTACKS[name].factory),
        }
        for name in ATTACKS
        if _ours(ATTACKS[name].factory)
    }


def parts() -> dict[str, Any]:
    """What an option of an attack may name: losses, starts, rules and schedules with their parameters."""
    return {
        word: {
            name: parameters(attack_text.KINDS[kind][name])
            for name in attack_text.KINDS[kind]
            if _ours(attack_text.KINDS[kind][name])
        }
        for kind, word in WORDS.items()
        if kind is not Attack
    }


def _ours(factory: Any) -> bool:
    return str(factory.__module__).startswith("vitattack.")


def parameters(factory: Callable[..., Any]) -> list[dict[str, Any]]:
    """Of what a text may say; the threat comes from elsewhere."""
    hints = typing.get_type_hints(factory.__init__ if isinstance(factory, type) else factory)  # type: ignore[misc]
    found: list[dict[str, Any]] = []
    for name, parameter in inspect.signature(factory).parameters.items():
        if attack_text.is_threat(hints.get(name)):
            continue
        content: dict[str, Any] = {"name": name, "kind": parameter.kind.name}
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            content["hint"] = _hint(hints[name])
        if parameter.default is not inspect.Parameter.empty:
            content["default"] = _default(parameter.default)
        found.append(content)
    return found


def _hint(hint: Any) -> Any:
    if hint in WORDS:
        return WORDS[hint]
    if hint in PLAIN:
        return PLAIN[hint]
    origin, choices = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return {"one_of": list(choices)}
    if origin is tuple:
        return {"many": _hint(choices[0])}
    if origin in (typing.Union, types.UnionType):
        rest = [choice for choice in choices if choice is not type(None)]
        kind = next((word for kind, word in WORDS.items() if set(typing.get_args(kind)) == set(rest)), None)
        return {"or_none": kind or _hint(rest[0])}
    raise TypeError(f"{hint} has no word in the recorded facts: add one to vitattack/bench/plan/record.py")


def _default(value: Any) -> Any:
    """Plain values as they are; an object by its name, since no price depends on the options of a default."""
    for kind in WORDS:
        for name in attack_text.KINDS[kind] if kind is not Attack else ():
            if type(value) is attack_text.KINDS[kind][name]:
                return {"named": name}
    content: Any = json.loads(json.dumps(value, default=lambda _: {"named": "?"}))
    return content


def data_sets() -> dict[str, Any]:
    """Every data set and protocol by name: how many images, of how many classes, what may follow the name."""
    found: dict[str, Any] = {}
    for name in DATA_SETS.in_order:
        entry = DATA_SETS[name]
        found[name] = {
            "rows": entry.rows,
            "classes": entry.num_classes,
            "transform": entry.takes_transform,
            "parts": sorted(entry.parts),
            "default": entry.default_part,
            "severities": entry.severities,
            "origin": entry.origin,
            "of_imagenet": entry.of_imagenet,
        }
    for name, protocol in PROTOCOLS.items():
        whole = found[protocol.data]
        found[name] = {**whole, "rows": len(protocol.rows), "protocol": True}
    return found
