"""Attacks as training runs them: every step for every image, and nothing learned beforehand."""

from __future__ import annotations

from vitattack.attacks.base import Attack, mapped, walk
from vitattack.attacks.gradient.loop import Gradient
from vitattack.core.errors import UsageError


def for_training(attack: Attack) -> Attack:
    """The attack without early stops, so that it returns its last iterate."""
    if attack.traits.learns:
        raise UsageError("inner: an attack that learns from other images first, such as aas, cannot train: use pgd")
    return mapped(lambda part: part.to_the_end(), attack)


def gradient_attacks(attack: Attack) -> list[Gradient]:
    """Every gradient loop inside an attack."""
    return [part for part in walk(attack) if isinstance(part, Gradient)]
