"""References within a benchmark file: `skip`, `overrides` and published numbers name its models, attacks and threats."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial

from vitattack.bench.read.cell_settings import read_settings
from vitattack.bench.schema import CLEAN, AttackColumn, ModelRow, Named, Selector
from vitattack.core.registry import did_you_mean
from vitattack.text.yaml_lines import Item, checked, refuse_unknown
from vitattack.threats.base import parse_threats


class Labels:
    """Models, attacks and threats of a file, found by label, or by text if that is unambiguous."""

    def __init__(self, models: Sequence[ModelRow], attacks: Sequence[AttackColumn], threats: Sequence[str]) -> None:
        self.models, self.attacks, self.threats = models, attacks, threats

    def of(self, axis: str) -> list[str]:
        """Labels of one axis: models, attacks or threats."""
        return list(self.threats) if axis == "threats" else [named.label for named in self._named(axis)]

    def any_matches(self, axis: str, pattern: str) -> bool:
        """Whether a wildcard matches anything on an axis."""
        if axis == "threats":
            return any(fnmatchcase(threat, pattern) for threat in self.threats)
        return any(named.matches(pattern) for named in self._named(axis))

    def model(self, item: Item) -> str:
        """Label of the model that an item names."""
        return _label(item, "model", self.models)

    def attack(self, item: Item) -> str:
        """Label of the attack that an item names, or `clean`."""
        return CLEAN if item.value == CLEAN else _label(item, "attack", self.attacks)

    def threat(self, item: Item | None, entry: Item, attack: str) -> str:
        """Canonical threat; optional in a file of one threat, and empty for clean accuracy."""
        if item is None:
            if attack != CLEAN and len(self.threats) > 1:
                entry.refuse(f"a reference of {attack} says under which threat: add threat: {self.threats[0]}")
            return "" if attack == CLEAN else self.threats[0]
        threats = checked(item, lambda: parse_threats(item.text("a threat")))
        if len(threats) > 1 or str(threats[0]) not in self.threats:
            checked(item, lambda: refuse_unknown("threat of this file", str(threats[-1]), self.threats))
        return "" if attack == CLEAN else str(threats[0])

    def _named(self, axis: str) -> Sequence[Named]:
        return self.models if axis == "models" else self.attacks


def _label(item: Item, what: str, named: Sequence[Named]) -> str:
    text = item.text(what)
    labels = [one.label for one in named]
    if text in labels:
        return text
    by_text = [one.label for one in named if one.text == text]
    if len(by_text) == 1:
        return by_text[0]
    known = [*labels, CLEAN] if what == "attack" else labels
    return item.refuse(did_you_mean(f"{what} of this file", text, known))


def selector(item: Item, labels: Labels, key: str) -> Selector:
    """One entry of `skip` or `overrides`, which `key` names."""
    axes = ("models", "attacks", "threats")
    keys = item.keys(f"an entry of {key}", (*axes, "set") if key == "overrides" else axes)
    if not keys:
        item.refuse(f"an entry of {key} names models, attacks or threats: write {{models: ID}}")
    patterns = {axis: _patterns(keys[axis], axis, labels) for axis in axes if axis in keys}
    settings = read_settings(keys["set"], "set") if "set" in keys else {}
    if key == "overrides" and not settings:
        item.refuse("an override sets something: add set: {batch_size: 32}")
    return Selector(**patterns, set=settings, line=item.line)


def _patterns(item: Item, axis: str, labels: Labels) -> tuple[str, ...]:
    patterns = tuple(part.text(axis) for part in item.items(axis))
    if not patterns:
        item.refuse(f"{axis} is an empty list: name at least one, or drop it, which means all of them")
    for pattern in patterns:
        if not labels.any_matches(axis, pattern):
            checked(item, partial(refuse_unknown, axis[:-1], pattern, labels.of(axis)))
    return patterns
