"""One attack described from its own signature, with its price counted on a model that cannot be fooled."""

from __future__ import annotations

import inspect
import types
import typing
from typing import Any

import torch
from torch import Tensor, nn

from vitattack import spec
from vitattack.attacks.base import Attack
from vitattack.attacks.catalogue import ATTACKS
from vitattack.errors import UsageError
from vitattack.models.victim import Victim
from vitattack.report.table import Table
from vitattack.rng import SampleRng


class _Stubborn(nn.Module):
    """Class 0 by a mile, with a gradient everywhere."""

    def forward(self, x: Tensor) -> Tensor:
        score = x.flatten(1).sum(1)
        return torch.stack([score + 1e6, *(score * k / 10 for k in range(1, 5))], 1)


def passes(text: str) -> tuple[int, int]:
    """Forwards and backwards that an attack spends on a sample it cannot fool."""
    victim = Victim(_Stubborn(), name="stubborn", num_classes=5, input_size=4)
    x = torch.full((1, 3, 4, 4), 0.5)
    attack = spec.for_any_threat(lambda threat: spec.build(text, threat))
    crafted = attack(victim, x, torch.zeros(1, dtype=torch.long), rng=SampleRng(0, (0,)))
    return int(crafted.evidence["forwards"]), int(crafted.evidence["backwards"])


def describe(name: str) -> tuple[Table, dict[str, Any]]:
    """The options of an attack as a table and as plain data."""
    entry = ATTACKS[name]
    hints = typing.get_type_hints(entry.factory)
    options = []
    for key, parameter in inspect.signature(entry.factory).parameters.items():
        if spec.is_threat(hints[key]):
            continue
        default = "required" if parameter.default is inspect.Parameter.empty else _default(parameter.default)
        options.append((key, default, _may_be(hints[key])))
    content: dict[str, Any] = {
        "name": name,
        "summary": entry.summary,
        "details": inspect.getdoc(entry.factory),
        "paper": entry.paper,
        "options": [dict(zip(("name", "default", "may_be"), row, strict=True)) for row in options],
    }
    notes = [str(content["details"]), f"paper: {entry.paper}"]
    try:
        forwards, backwards = passes(name)
    except UsageError:  # wrappers need something to wrap
        notes.append(f"cost: that of what it holds; for example {entry.quick}: {passes(entry.quick)[0]} forwards")
    else:
        content |= {"forwards": forwards, "backwards": backwards}
        notes.append(f"cost of a robust sample: {forwards} forwards + {backwards} backwards")
    return Table(name, ("option", "default", "may be"), options, notes, left=3), content


def _default(value: Any) -> str:
    for kind, registry in spec.KINDS.items():
        for name in registry if kind is not Attack else ():
            if type(value) is registry[name]:
                return name
    return "see below" if value is None else str(value)


def _may_be(hint: Any) -> str:
    for kind, registry in spec.KINDS.items():
        if hint is kind or set(typing.get_args(kind)) & set(typing.get_args(hint)) or kind in typing.get_args(hint):
            return f"{registry.kind}: {', '.join(registry)}"
    if typing.get_origin(hint) is typing.Literal:
        return ", ".join(map(str, typing.get_args(hint)))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return _may_be(next(h for h in typing.get_args(hint) if h is not type(None)))
    return {int: "whole number", float: "number", bool: "True, False"}.get(hint, str(hint))
