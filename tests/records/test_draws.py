"""Expectations over the draws of a random model, and their intervals."""

from __future__ import annotations

import random

import pytest

from vitattack.records import stats
from vitattack.records.draws import expectation, union
from vitattack.records.record import SampleRecord, Status
from vitattack.records.stats import Accuracy, expected_share, share


def record(index: int, right: str, clean_right: str = "11111", status: Status = "robust") -> SampleRecord:
    evidence: dict[str, int | float | str] = {"draws": len(clean_right), "clean_right": clean_right, "right": right}
    return SampleRecord(index, 0, 0, 0 if status == "robust" else 1, status, 0.1, False, False, -1, 5, 5, evidence)


@pytest.mark.parametrize(("correct", "n"), [(0, 7), (7, 7), (3, 7), (30, 64), (1, 1)])
def test_without_noise_the_interval_is_that_of_wilson(correct: int, n: int) -> None:
    for k in (1, 5):
        rows = ["1" * k] * correct + ["0" * k] * (n - correct)
        assert tuple(expected_share(rows)) == pytest.approx(tuple(share(correct, n)))


def covered(draw: int, together: bool, runs: int = 300) -> float:
    """How often the interval of 30 images with `draw` draws each holds the true accuracy of the population, 0.5."""
    luck, hits = random.Random(draw), 0
    for _ in range(runs):
        chances = [luck.choice((0.1, 0.3, 0.7, 0.9)) for _ in range(30)]
        common = [luck.random() for _ in range(draw)]
        rows = [
            "".join("1" if (common[d] if together else luck.random()) < chance else "0" for d in range(draw))
            for chance in chances
        ]
        found = expected_share(rows)
        hits += found.low <= 0.5 <= found.high
    return hits / runs


@pytest.mark.parametrize("together", [False, True])
def test_the_interval_holds_the_images_and_the_draws(together: bool) -> None:
    """Also where all images share their noise, as with one random crop for a whole batch."""
    assert covered(11, together) > 0.9


def test_noise_in_common_widens_the_interval() -> None:
    luck = random.Random(0)
    common = [luck.random() for _ in range(11)]
    together = ["".join("1" if d < 0.6 else "0" for d in common)] * 40
    apart = ["".join("1" if luck.random() < 0.6 else "0" for _ in range(11)) for _ in range(40)]
    wide, narrow = expected_share(together), expected_share(apart)
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)
    assert expectation(together).size < 12 and expectation(apart).size <= 40 * 11


def test_accuracies_are_expectations_and_statuses_are_majorities() -> None:
    records = [record(0, "11010"), record(1, "00010", status="fooled"), record(2, "11111", "10111")]
    assert stats.clean_accuracy(records).accuracy == pytest.approx(14 / 15)
    assert stats.robust_accuracy(records).accuracy == pytest.approx(9 / 15)
    assert stats.robust_accuracy(records).correct == 2
    assert stats.expected_loss(records).accuracy == pytest.approx(5 / 15)
    invalid = SampleRecord(3, 0, 0, -1, "invalid", 0.1, False, True, -1, 5, 5, {"draws": 5, "clean_right": "11111"})
    found = stats.robust_accuracy([*records, invalid])
    assert found.accuracy == pytest.approx(9 / 20)
    assert found.high > stats.expected_share(["11010", "00010", "11111", "00000"]).high


def test_the_worst_case_of_noise_alone_is_no_success() -> None:
    """The lowest of many noisy shares is lower than all of them; choice and count use different draws."""
    luck = random.Random(1)
    attacks = [["".join(luck.choice("01") for _ in range(11)) for _ in range(400)] for _ in range(4)]
    naive = sum(min(one.count("1") for one in row) for row in zip(*attacks, strict=True)) / 4400
    fair = sum(union(row).count("1") for row in zip(*attacks, strict=True)) / 4400
    assert naive < 0.4 and fair == pytest.approx(0.5, abs=0.03)
    assert union(["11111", "00000", "1"]) == "00000"


def test_samples_of_a_deterministic_kind_are_counted_as_ever() -> None:
    plain = [
        SampleRecord(i, 0, 0, i % 2, "robust" if i % 2 else "fooled", 0.1, i == 1, False, -1, 5, 5) for i in range(9)
    ]
    assert stats.robust_accuracy(plain) == Accuracy(*share(4, 9, least=3, most=4))
    some = [*plain, record(9, "00111")]
    assert stats.robust_accuracy(some).accuracy == pytest.approx(4.6 / 10)
