"""The warm-up of a budget reaches every ball of every attack that training may hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from vitattack.attacks import attack_text
from vitattack.attacks.catalogue import ATTACKS
from vitattack.core.errors import UsageError
from vitattack.threats.base import parse_threat
from vitattack.threats.lp import LpBall
from vitattack.train.objectives.budgets import Limited, Unprojected, limited, with_budget


def balls(value: object) -> Iterator[LpBall]:
    """Every ball in a value, found through its fields instead of through the protocol of attacks."""
    if isinstance(value, LpBall):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from balls(item)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from balls(getattr(value, field.name))


@pytest.mark.parametrize("name", sorted(name for name in ATTACKS if ATTACKS[name].kinds != ("l0",)))
def test_every_ball_of_an_attack_is_limited(name: str) -> None:
    entry = ATTACKS[name]
    attack = attack_text.for_any_threat(lambda threat: attack_text.build(entry.quick, threat))
    before, after = list(balls(attack)), list(balls(with_budget(attack, 0.004)))
    assert after == [Limited(ball.norm, ball.eps, 0.004) for ball in before]


@pytest.mark.parametrize("threat", ["l1:12", "l0:20px"])
def test_other_balls_have_no_warm_up(threat: str) -> None:
    with pytest.raises(UsageError, match=f"not {threat}: train with all of it"):
        with_budget(attack_text.build("fmn", parse_threat(threat)), 0.004)


def test_an_unprojected_ball_shrinks_its_steps_too() -> None:
    assert limited(Unprojected("linf", 0.1, noise=3), 0.04) == Unprojected("linf", 0.04, noise=3)
