"""Means and ratios of means over images, with 95 % intervals by the normal distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from vitattack.records.stats import Z95


class Estimate(NamedTuple):
    """A number with its interval, which one image alone does not give."""

    value: float
    low: float | None = None
    high: float | None = None

    def text(self, digits: int = 3, factor: float = 1.0) -> str:
        """The number and its interval, each multiplied by `factor`."""
        number = f"{factor * self.value:.{digits}f}"
        if self.low is None or self.high is None:
            return number
        return f"{number} ({factor * self.low:.{digits}f} to {factor * self.high:.{digits}f})"


def mean_of(values: Sequence[float]) -> Estimate:
    """The mean of independent values."""
    n = len(values)
    mean = math.fsum(values) / n if n else math.nan
    return _with_error(mean, [value - mean for value in values])


def ratio_of(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """The mean of one over the mean of the other, of the same images; its interval is linearised (delta method)."""
    bottom = math.fsum(below) / len(below) if below else math.nan
    if not bottom:
        return Estimate(math.nan)
    ratio = math.fsum(above) / len(above) / bottom
    return _with_error(ratio, [(a - ratio * b) / bottom for a, b in zip(above, below, strict=True)])


def _with_error(value: float, deviations: Sequence[float]) -> Estimate:
    n = len(deviations)
    if n < 2 or not math.isfinite(value):
        return Estimate(value)
    half = Z95 * math.sqrt(math.fsum(d * d for d in deviations) / (n * (n - 1)))
    return Estimate(value, value - half, value + half)
