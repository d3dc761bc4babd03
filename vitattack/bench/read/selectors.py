"""What skip, overrides and references may refer to: the models, attacks and threats of the same file."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from vitattack.bench.schema import CLEAN, Attack, Model, Override
from vitattack.core.registry import did_you_mean
from vitattack.text.yaml_lines import Item, checked, unknown
from vitattack.threats.base import parse_threats


class Labels:
    """What may be referred to: by label, or by text where that is unambiguous."""

    def __init__(self, models: tuple[Model, ...], attacks: tuple[Attack, ...], threats: tuple[str, ...]) -> None:
        self.models, self.attacks, self.threats = models, attacks, threats

    def known(self, axis: str) -> list[str]:
        if axis == "threats":
            return list(self.threats)
        those: Iterable[Model | Attack] = self.models if axis == "models" else self.attacks
        return [one.label for one in those]

    def any_fits(self, axis: str, pattern: str) -> bool:
        if axis == "threats":
            return any(fnmatchcase(threat, pattern) for threat in self.threats)
        those: Iterable[Model | Attack] = self.models if axis == "models" else self.attacks
        return any(named(one, pattern) for one in those)

    def model(self, item: Item) -> str:
        return self._label(item, "model", self.models)

    def attack(self, item: Item) -> str:
        return CLEAN if item.value == CLEAN else self._label(item, "attack", self.attacks)

    def threat(self, item: Item | None, whole: Item, attack: str) -> str:
        """Canonical; a file of one threat need not say it, and clean accuracy has none."""
        if item is None:
            if attack != CLEAN and len(self.threats) > 1:
                whole.refuse(f"a reference of {attack} says under which threat: add threat: {self.threats[0]}")
            return "" if attack == CLEAN else self.threats[0]
        found = checked(item, lambda: parse_threats(item.text("a threat")))
        if len(found) > 1 or str(found[0]) not in self.threats:
            checked(item, lambda: unknown("threat of this file", str(found[-1]), self.threats))
        return "" if attack == CLEAN else str(found[0])

    @staticmethod
    def _label(item: Item, what: str, named: Iterable[Model | Attack]) -> str:
        text = item.text(what)
        labels = [one.label for one in named]
        texts = [one.label for one in named if one.text == text]
        if text in labels or len(texts) == 1:
            return text if text in labels else texts[0]
        return item.refuse(
            did_you_mean(f"{what} of this file", text, [*labels, *((CLEAN,) if what == "attack" else ())])
        )


def fits(pattern: Override, model: Model, attack: Attack, threat: str) -> bool:
    """Whether an entry of `overrides` or `skip` speaks of a cell."""
    return (
        (not pattern.models or any(named(model, p) for p in pattern.models))
        and (not pattern.attacks or any(named(attack, p) for p in pattern.attacks))
        and (not pattern.threats or any(fnmatchcase(threat, p) for p in pattern.threats))
    )


def named(one: Model | Attack, pattern: str) -> bool:
    return pattern in (one.label, one.text) or fnmatchcase(one.label, pattern) or fnmatchcase(one.text, pattern)
