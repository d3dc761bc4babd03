"""Counts of broken samples per stage, and the doubt if Square broke some."""

from __future__ import annotations

import pytest

from vitattack.attacks import attack_text
from vitattack.attacks.stages import broken_by, square_doubts
from vitattack.records.record import SampleRecord


def names(text: str) -> tuple[str, ...]:
    named = attack_text.example_attack(text)
    return named.attack.stage_names(named.text)


def records(*stages: int) -> list[SampleRecord]:
    """Samples broken by these stages, -1 for by none."""
    return [
        SampleRecord(i, 0, 0, 1, "fooled" if s >= 0 else "robust", 0.0, False, False, 0, 1, 1, {"stage": s})
        for i, s in enumerate(stages)
    ]


def test_stages_are_those_of_the_outermost_attack() -> None:
    assert names("worst(worst(pgd, gama), square)") == ("worst(pgd, gama)", "square")
    assert names("perceptual(worst(pgd, gama), lpips=False)") == ("pgd", "gama")
    assert names("restarts(2, worst(pgd, gama))") == names("pgd") == ()


def test_an_attack_named_twice_loses_nobody() -> None:
    assert broken_by(names("worst(pgd, gama, pgd(steps=20))"), records(0, 0, 1, -1)) == {"pgd": 2, "gama": 1}


@pytest.mark.parametrize(
    ("text", "stage", "said"),
    [
        ("worst(pgd, square(queries=100))", 1, True),
        ("autoattack", 3, True),
        ("autoattack_ref", 3, True),
        ("worst(square, pgd)", 0, False),  # there was nothing before it
        ("worst(random, square)", 1, False),  # nor anything with gradients here
        ("worst(pgd, gama)", 1, False),
    ],
)
def test_square_doubts_where_gradients_came_before_it(text: str, stage: int, said: bool) -> None:
    assert bool(square_doubts(broken_by(names(text), records(stage, -1, -1)), 3)) == said
