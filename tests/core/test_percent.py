"""Bounds in percent hold after rounding."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vitattack.attacks.auto.report import AssuranceOutcome
from vitattack.core.percent import at_least, at_most, percent, span
from vitattack.records.stats import figures, share


@given(st.floats(-1.0, 1.0))
@example(0.55)
@example(-0.0)
@example(1e-300)
def test_a_printed_bound_holds_and_is_near(value: float) -> None:
    exact = 100 * Decimal(repr(value))
    for signed in (False, True):
        low, high = Decimal(at_least(value, signed=signed)), Decimal(at_most(value, signed=signed))
        assert low <= exact <= high and high - low <= Decimal("0.1")
    assert "-0.0" not in (at_least(value), at_most(value))


@given(st.integers(1, 10**6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_a_printed_interval_holds_its_accuracy(counts: tuple[int, int]) -> None:
    accuracy = share(*counts)
    shown, interval, _ = figures(accuracy)
    low, high = map(Decimal, interval.split(" - "))
    assert low <= 100 * Decimal(accuracy.low) + Decimal("1e-9") and 100 * Decimal(accuracy.high) <= high + Decimal(
        "1e-9"
    )
    assert low <= Decimal(shown.removesuffix(" %")) <= high


@pytest.mark.parametrize(
    ("low", "high", "text"), [(0.1234, 0.5601, "12.3 - 56.1"), (0.55, 0.55, "55.0 - 55.0"), (0, 1, "0.0 - 100.0")]
)
def test_intervals_are_rounded_outwards(low: float, high: float, text: str) -> None:
    assert span(low, high) == text
    assert percent(0.1234) == "12.3 %"


def test_signs_of_differences_stay() -> None:
    assert span(-0.01234, 0.0301, " to ", signed=True) == "-1.3 to +3.1"


def test_a_few_fragile_survivors_of_many_are_not_none() -> None:
    """A bound of 0.26 % is not 0 %."""
    assured = AssuranceOutcome(survivors=5000, probed=1150, nearest=0, fell=0, escalated=False, broke=0)
    assert assured.bound is not None and 0.002 < assured.bound < 0.003
    assert f"at most {at_most(assured.bound)}% of the 5000 survivors" in assured.note
    assert "at most 0.3% of the 5000 survivors" in assured.note
