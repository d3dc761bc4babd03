"""Attacks as training runs them: every step for every image, and nothing learned beforehand."""

from __future__ import annotations

from vitattack.attacks.base import Attack, map_attacks, walk_attacks
from vitattack.attacks.gradient.loop import Gradient
from vitattack.core.errors import UsageError


def for_training(attack: Attack) -> Attack:
    """The attack without early stops, so that it returns its last iterate."""
    if attack.traits.learns:
        raise UsageError("inner: an attack that learns from other images first, such as aas, cannot train: use pgd")
    return map_attacks(lambda part: part.without_early_stop(), attack)


def gradient_attacks(attack: Attack) -> list[Gradient]:
    """Every gradient loop inside an attack."""
    return [part for part in walk_attacks(attack) if isinstance(part, Gradient)]
