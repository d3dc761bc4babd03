"""Shares in percent. Bounds are rounded outwards: a lower one down, an upper one up, so that what is printed holds."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal


def percent(value: float) -> str:
    """A share in percent, rounded to the nearest tenth."""
    return f"{100 * value:.1f} %"


def at_least(low: float, *, signed: bool = False) -> str:
    """A lower bound in percent, rounded down to a tenth; the unit is left to the reader of a column."""
    return _rounded(low, ROUND_FLOOR, signed)


def at_most(high: float, *, signed: bool = False) -> str:
    """An upper bound in percent, rounded up to a tenth."""
    return _rounded(high, ROUND_CEILING, signed)


def span(low: float, high: float, between: str = " - ", *, signed: bool = False) -> str:
    """An interval in percent, rounded outwards."""
    return f"{at_least(low, signed=signed)}{between}{at_most(high, signed=signed)}"


def _rounded(value: float, rounding: str, signed: bool) -> str:
    # From the shortest decimal that means this number: 0.55 is stored as a little more, and its bound is still 55.0.
    tenths = (100 * Decimal(repr(float(value)))).quantize(Decimal("0.1"), rounding) + 0  # no negative zero
    return f"{tenths:+}" if signed else f"{tenths}"
