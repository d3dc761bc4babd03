"""An attack text read without torch: which attacks it names, with every option bound or at its default.

It knows names, options, kinds of values and threats, from what was recorded of the attacks (`facts`). Whether values
suit each other, and what is the least of each (`steps=0`), is said by `spec`, which builds the attack.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any

from vitattack.bench.plan import facts
from vitattack.bench.plan.facts import AnAttack, Kind, Signature
from vitattack.core.errors import UsageError, WrongThreat
from vitattack.core.registry import did_you_mean
from vitattack.text.bind import Reader
from vitattack.text.syntax import Call, Node, parse, short, shown
from vitattack.threats.base import Threat

SAMPLES = {"linf": "linf:8/255", "l2": "l2:0.5", "spatial": "spatial"}


@dataclass(frozen=True)
class Outline:
    """A name with the values of its options; those that name something are outlines themselves."""

    name: str
    values: Mapping[str, Any] = field(default_factory=dict)
    known: bool = True  # False: of a plug-in, whose options nobody recorded

    def given(self, name: str, default: Any) -> Any:
        """The value of an option, or what stands for None."""
        value = self.values.get(name)
        return default if value is None else value

    def __str__(self) -> str:
        return self.name


def outline(text: str, threat: Threat | None = None) -> Outline:
    """What an attack text says; refused if it names what there is not, or is not defined for the threat."""
    found: Outline = _Outlines(text, threat).named(parse(text), AnAttack)[0]
    return found


class _Outlines(Reader):
    attack = AnAttack
    kinds = tuple(facts.KINDS.values())

    def __init__(self, text: str, threat: Threat | None) -> None:
        super().__init__(text)
        self.threat = threat

    def example(self, name: str) -> str:
        known = facts.attacks()
        return known[name].quick if name in known else f"{name}(...)"

    def named(self, node: Node, kind: Any) -> tuple[Outline, str]:
        if not isinstance(node, Call):
            what = "an attack" if kind is AnAttack else "a name"
            raise UsageError(f"'{short(self.text)}': {shown(node)} stands where {what} belongs")
        known = facts.attacks() if kind is AnAttack else facts.parts(kind)
        if node.name not in known:
            if _of_plugin(kind, node.name):
                return Outline(node.name, known=False), node.name
            raise UsageError(did_you_mean(_word(kind), node.name, known))
        signature = known[node.name]
        if kind is AnAttack and self.threat is not None and self.threat.kind not in signature.threats:
            fits = " or ".join(SAMPLES[name] for name in signature.threats)
            raise WrongThreat(f"{node.name} is not defined for {self.threat.kind} threats: use --threat {fits}")
        values, _ = self.bind(node, signature.parameters, signature.hints, signature.unlisted)
        negative = next((option for option, value in values.items() if type(value) is int and value < 0), None)
        if (
            negative is not None and not signature.unlisted
        ):  # every whole number is a count, and its price would be negative
            raise UsageError(f"'{short(self.text)}': {node.name}({negative}=...) is negative: write 1 or more")
        return Outline(node.name, {**_defaults(signature), **values}), node.name


def _defaults(signature: Signature) -> dict[str, Any]:
    found = {}
    for name, parameter in signature.parameters.items():
        if parameter.default is not parameter.empty:
            value = parameter.default
            found[name] = Outline(value["named"]) if isinstance(value, dict) else value
    return found


def _word(kind: type[Kind]) -> str:
    """As the registry of this kind is called."""
    word = next(word for word, known in facts.KINDS.items() if known is kind)
    return "step rule" if word == "rule" else word


def _of_plugin(kind: type[Kind], name: str) -> bool:
    group = f"vitattack.{_word(kind).rpartition(' ')[2]}s"
    return any(point.name == name for point in entry_points(group=group))
