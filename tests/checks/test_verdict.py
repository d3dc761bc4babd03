"""Verdicts on claims, and the exact tests they rest on."""

from __future__ import annotations

import pytest

from vitattack.checks.claim import Claim
from vitattack.checks.exact_tests import at_least, is_too_high
from vitattack.checks.item import Item
from vitattack.checks.verdict import judge
from vitattack.core.errors import UsageError
from vitattack.records import stats

PASSED = Item("a", "?", "1", "1", "", True, decisive=True)
FAILED = Item("fidelity", "?", "0.1", "at least 0.5", "", False, decisive=True)
HINT = Item("b", "?", "2", "1", "", False)
FOUND = stats.share(50, 100)


@pytest.mark.parametrize(("found", "n", "low"), [(64, 64, 0.954), (0, 8, 0.0), (8, 8, 0.687), (19, 20, 0.783)])
def test_the_lower_bound_is_clopper_and_pearsons(found: int, n: int, low: float) -> None:
    assert at_least(found, n) == pytest.approx(low, abs=5e-4)


def test_a_claim_is_refuted_at_five_percent() -> None:
    """P(X <= 50 | 100, p) is 0.05 at p = 0.5864 (scipy): the exact upper bound of 50 of 100."""
    assert not is_too_high(0.586, 50, 100) and is_too_high(0.587, 50, 100)
    assert is_too_high(0.1, 0, 100) and not is_too_high(0.0, 0, 100) and is_too_high(1.0, 99, 100)


def test_what_is_far_below_the_claim_does_not_hold_whatever_the_checks_say() -> None:
    for items in ([PASSED], [FAILED]):
        verdict = judge(Claim(0.7), FOUND, items)
        assert (verdict.word, verdict.exit_code) == ("does not hold", 3)
        assert verdict.reasons == ("70.0 % claimed, 50.0 % found (40.3 - 59.7, n = 100)",)


def test_a_claim_that_is_not_refuted_holds_if_the_attack_could_tell() -> None:
    assert judge(Claim(0.52), FOUND, [PASSED, HINT]).word == "holds" == judge(None, FOUND, [PASSED]).word
    verdict = judge(Claim(0.52), FOUND, [PASSED, FAILED])
    assert (verdict.word, verdict.exit_code) == ("cannot tell", 4)
    assert "fidelity: 0.1 (wanted: at least 0.5)" in verdict.reasons


def test_a_count_on_the_same_images_is_refuted_by_one_image() -> None:
    assert judge(Claim.of("50/100"), FOUND, [PASSED]).word == "holds"
    verdict = judge(Claim.of("51/100"), FOUND, [PASSED])
    assert verdict.word == "does not hold" and verdict.reasons == ("51/100 claimed, 50 found on the same images",)
    assert judge(Claim(0.51), FOUND, [PASSED]).word == "holds"  # as a share it may be chance


@pytest.mark.parametrize("text", ["5/4", "0/0", "x", "4", "-1/4", "1/2/3"])
def test_a_count_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="41/128"):
        Claim.of(text)


def test_a_count_is_of_as_many_images_as_are_checked() -> None:
    Claim.of("1/4").check_images(4)
    Claim(0.5).check_images(4)
    with pytest.raises(UsageError, match="--limit 8"):
        Claim.of("1/8").check_images(4)


def test_what_could_not_be_asked_is_no_failure() -> None:
    assert judge(None, FOUND, [PASSED._replace(passed=None)]).word == "holds"
