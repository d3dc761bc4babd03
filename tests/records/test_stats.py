"""Intervals and tests against published values and brute force."""

from __future__ import annotations

import math
from itertools import product

import pytest

from vitattack.records import stats
from vitattack.records.record import SampleRecord, Status


def record(index: int, status: Status, fragile: bool = False) -> SampleRecord:
    clean = 1 if status == "clean_wrong" else 0
    return SampleRecord(index, 0, clean, 0, status, 0.0, fragile, False, -1, 3, 2)


def records(text: str) -> list[SampleRecord]:
    """r robust, f fooled, w clean wrong, i invalid, x fragile."""
    kinds: dict[str, Status] = {"r": "robust", "f": "fooled", "w": "clean_wrong", "i": "invalid", "x": "robust"}
    return [record(i, kinds[c], c == "x") for i, c in enumerate(text)]


@pytest.mark.parametrize(
    ("correct", "n", "low", "high"),
    # Newcombe 1998, Statistics in Medicine 17, table I, method 3
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_against_newcombe(correct: int, n: int, low: float, high: float) -> None:
    assert stats.wilson(correct, n) == pytest.approx((low, high), abs=5e-5)


def test_robust_accuracy_counts_all_samples_and_its_interval_knows_what_is_open() -> None:
    run = records("r" * 40 + "f" * 30 + "w" * 20)
    plain = stats.robust_accuracy(run)
    assert (plain.accuracy, plain.correct, plain.n) == (pytest.approx(40 / 90), 40, 90)
    assert (plain.low, plain.high) == pytest.approx(stats.wilson(40, 90))
    doubtful = stats.robust_accuracy(records("r" * 36 + "x" * 4 + "f" * 30 + "w" * 17 + "i" * 3))
    assert doubtful.correct == 40 and doubtful.n == 90
    assert (doubtful.low, doubtful.high) == (stats.wilson(36, 90)[0], stats.wilson(43, 90)[1])
    assert doubtful.low < plain.low and doubtful.high > plain.high


def test_worst_case_is_per_sample() -> None:
    worst = stats.worst_case([records("rrffw"), records("rfrfw")])
    assert (worst.correct, worst.n) == (1, 5)
    assert stats.worst_case([records("rrffw")]).correct == 2
    # samples that only one run has are left out
    assert stats.worst_case([records("rrffw"), records("rr")]).n == 2


def test_mcnemar_against_the_enumerated_binomial() -> None:
    paired = stats.mcnemar(records("r" * 9 + "f" * 5), records("f" * 9 + "r" * 2 + "f" * 3))
    assert (paired.only_first, paired.only_second, paired.n) == (9, 2, 14)
    ways = sum(1 for flips in product((0, 1), repeat=11) if min(sum(flips), 11 - sum(flips)) <= 2)
    assert paired.p_value == pytest.approx(ways / 2**11)
    assert stats.mcnemar(records("rrf"), records("rrf")).p_value == 1.0


@pytest.mark.parametrize(("only_first", "only_second"), [(0, 1), (3, 3), (2, 19), (140, 97), (700, 400)])
def test_wilson_and_mcnemar_against_scipy(only_first: int, only_second: int) -> None:
    reference = pytest.importorskip("scipy.stats")
    n = only_first + only_second
    test = reference.binomtest(only_first, n, 0.5)
    paired = stats.mcnemar(records("r" * only_first + "f" * only_second), records("f" * only_first + "r" * only_second))
    assert paired.p_value == pytest.approx(test.pvalue, rel=1e-12)
    interval = test.proportion_ci(confidence_level=0.95, method="wilson")
    assert stats.wilson(only_first, n) == pytest.approx((interval.low, interval.high), rel=1e-12, abs=1e-15)


def test_shares_differ_beyond_chance() -> None:
    # 3.29 standard errors of 0.5 against 0.5 at n = 100 each are 0.2327
    assert not stats.differ(stats.share(61, 100), stats.share(39, 100))
    assert stats.differ(stats.share(63, 100), stats.share(37, 100))
    assert not stats.differ(stats.share(45, 50), stats.share(7546, 10_000))  # what 50 easy images may do
    assert stats.differ(stats.share(50, 1000), stats.share(7546, 10_000))


def test_empty_and_extreme_shares() -> None:
    assert stats.wilson(0, 0) == (0.0, 1.0)
    assert stats.wilson(5, 5)[1] == 1.0
    assert math.isclose(stats.share(0, 4).accuracy, 0.0)


def test_cost_is_per_attacked_sample() -> None:
    assert stats.mean_passes(records("rfww")) == (3, 2)
