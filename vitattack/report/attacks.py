"""One attack described from its own signature, with its price on a model that cannot be fooled."""

from __future__ import annotations

import inspect
import types
import typing
from typing import Any

from vitattack.attacks import attack_text
from vitattack.attacks.base import Attack
from vitattack.attacks.catalogue import ATTACKS
from vitattack.attacks.price import PassesPerImage, PriceQuery, UnknownPrice
from vitattack.core.errors import UsageError
from vitattack.core.table import Table

CLASSES = 10  # that prices are told for; fab pays a gradient per wrong class


def price(text: str) -> PassesPerImage | None:
    """Passes that an attack itself spends on a sample it cannot fool; None if unknown."""
    named = attack_text.for_any_threat(lambda threat: (attack_text.build(text, threat), threat))
    try:
        return named[0].price(PriceQuery(CLASSES, named[1])).victim
    except UnknownPrice:
        return None


def price_alone(name: str) -> PassesPerImage | None:
    """The price of an attack with its defaults; None for one that holds others or attacks through attention."""
    try:
        return None if ATTACKS[name].needs_attention else price(name)
    except UsageError:  # it needs more than its name
        return None


def attacks_table() -> tuple[Table, list[dict[str, Any]]]:
    """The table of all attacks, with their prices on a sample they cannot fool."""
    rows, content = [], []
    for name in ATTACKS:
        entry, cost = ATTACKS[name], price_alone(name)
        rows.append(
            (
                name,
                "-" if cost is None else f"{cost[0]} + {cost[1]}",
                "all" if entry.threats is None else " ".join(entry.kinds),
                entry.summary,
            )
        )
        forwards, backwards = cost or (None, None)
        content.append(
            {
                "name": name,
                "summary": entry.summary,
                "paper": entry.paper,
                "threats": list(entry.kinds),
                "forwards": forwards,
                "backwards": backwards,
            }
        )
    notes = [
        "fwd + bwd: passes per robust sample with the defaults, at 10 classes; - for attacks that hold others "
        "(theirs is the price of what they hold) and for those through attention",
        "one of them with its options and its paper: vitattack attacks info NAME; all in full: --format md",
    ]
    columns = ("name", "fwd + bwd", "for", "what it does")
    return Table("attacks", columns, rows, notes, left=4, line_each=True), content


def attack_description(name: str) -> tuple[Table, dict[str, Any]]:
    """The options of an attack as a table and as plain data."""
    entry = ATTACKS[name]
    hints = typing.get_type_hints(entry.factory)
    options = []
    for key, parameter in inspect.signature(entry.factory).parameters.items():
        if attack_text.is_threat(hints[key]):
            continue
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            options.append(("...", "its own", "options of what is named"))
            continue
        default = "required" if parameter.default is inspect.Parameter.empty else _default(parameter.default)
        options.append((key, default, _may_be(hints[key])))
    content: dict[str, Any] = {
        "name": name,
        "summary": entry.summary,
        "details": inspect.getdoc(entry.factory),
        "paper": entry.paper,
        "threats": list(entry.kinds),
        "options": [dict(zip(("name", "default", "may_be"), row, strict=True)) for row in options],
    }
    notes = [str(content["details"]), f"paper: {entry.paper}", f"for threats: {', '.join(entry.kinds)}"]
    cost = price_alone(name)
    if cost is not None:
        content |= {"forwards": cost[0], "backwards": cost[1]}
        notes.append(f"cost of a robust sample: {cost[0]} forwards + {cost[1]} backwards")
    elif not entry.needs_attention:
        example = price(entry.quick)
        if example is not None:
            notes.append(f"cost: that of what it holds; for example {entry.quick}: {example.forwards} forwards")
    return Table(name, ("option", "default", "may be"), options, notes, left=3), content


def _default(value: Any) -> str:
    for kind, registry in attack_text.KINDS.items():
        for name in registry if kind is not Attack else ():
            if type(value) is registry[name]:
                return name
    return "see below" if value is None else str(value)


def _may_be(hint: Any) -> str:
    for kind, registry in attack_text.KINDS.items():
        if hint is kind or set(typing.get_args(kind)) & set(typing.get_args(hint)) or kind in typing.get_args(hint):
            return f"{registry.kind}: {', '.join(registry)}"
    if typing.get_origin(hint) is typing.Literal:
        return ", ".join(map(str, typing.get_args(hint)))
    if typing.get_origin(hint) is tuple:
        return f"tuple of: {_may_be(typing.get_args(hint)[0])}"
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return _may_be(next(h for h in typing.get_args(hint) if h is not type(None)))
    return {int: "whole number", float: "number", bool: "True, False", str: "quoted text"}.get(hint, str(hint))
