"""Words of the transfer command, in which the attack may stand among the models; no torch is needed."""

from __future__ import annotations

from collections.abc import Sequence

from vitattack.attacks.catalogue import ATTACKS
from vitattack.core.errors import UsageError
from vitattack.models.weights.sources import SUFFIXES

# Every image makes all steps: candidates that stop at the first success on the source transfer badly.
DEFAULT_ATTACK = "pgd(preset=bhojanapalli2021, stop=never)"


def split_attack(
    models: Sequence[str], to: Sequence[str], attack: str | None
) -> tuple[list[str], list[str], str | None]:
    """Sources, targets and the attack, if one is named; it may be the last word of either list."""
    lists = list(models), list(to)
    attacks = [attack] if attack else []
    for words in lists:
        while words and is_attack(words[-1]):
            attacks.append(words.pop())
    if len(attacks) > 1:
        raise UsageError("one attack is crafted at a time: name one, or worst(...) of several")
    return *lists, attacks[0] if attacks else None


def is_attack(word: str) -> bool:
    """Whether a word is an attack: model names have no bracket, though file names may, and bare names are registered."""
    return ("(" in word and not word.endswith(SUFFIXES)) or word.partition("+")[0].strip() in ATTACKS
