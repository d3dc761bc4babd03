"""Exact one-sided statements about a share, at 95 %."""

from __future__ import annotations

import math

DOUBT = 0.05


def at_least(found: int, n: int) -> float:
    """The lower bound of a share of which `found` of n are known (Clopper & Pearson 1934), rounded down to 0.1 %."""
    if not found:
        return 0.0
    low, high = 0.0, found / n
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _or_more(found, n, middle) <= DOUBT else (low, middle)
    return math.floor(low * 1000) / 1000


def is_too_high(claim: float, found: int, n: int) -> bool:
    """Whether so few of n contradict a claimed share: `found` or fewer would be seen in at most one sample of twenty."""
    return _or_more(n - found, n, 1 - claim) <= DOUBT


def _or_more(found: int, n: int, p: float) -> float:
    """The probability of `found` or more of n, each with probability p."""
    if p <= 0 or p >= 1:
        return 1.0 if found <= 0 or p >= 1 else 0.0
    logs = (_log_ways(n, k) + k * math.log(p) + (n - k) * math.log1p(-p) for k in range(found, n + 1))
    return min(1.0, math.fsum(map(math.exp, logs)))


def _log_ways(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
