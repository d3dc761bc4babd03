"""The comparison of views for transfer with MI-FGSM, on outcomes made up by hand."""

from __future__ import annotations

from tests.benchmarks.conftest import Script


def test_holm_steps_down_until_the_first_that_stands(script: Script) -> None:
    holm = script("transfer_views.py").holm
    pairs = [("a", "b"), ("a", "c"), ("a", "d"), ("b", "c")]
    # 0.0125, 0.0167, 0.025, 0.05 are the levels
    assert holm(dict(zip(pairs, (0.06, 0.001, 0.012, 0.016), strict=True))) == [pairs[1], pairs[2], pairs[3]]
    assert holm(dict(zip(pairs, (0.02, 0.02, 0.02, 0.02), strict=True))) == []


def test_a_view_is_compared_on_the_same_images(script: Script) -> None:
    # the source on itself, and two targets with ten and six joint images
    plain = {
        ("s", "s"): dict.fromkeys(range(10), False),
        ("s", "t"): dict.fromkeys(range(10), True),
        ("s", "u"): {0: False, **dict.fromkeys(range(1, 6), True)},
    }
    found = {
        ("s", "s"): {**dict.fromkeys(range(10), False), 9: True},
        ("s", "t"): {**dict.fromkeys(range(8), False), 8: True, 9: True},  # 8 more: p = 2 / 2^8
        ("s", "u"): {0: True, 1: False, 2: True, 3: True, 4: True, 5: True},  # one more, one fewer
    }
    row = script("transfer_views.py").against("view", plain, found)
    assert row.white_box == 0.9
    assert row.success == (0.8 + 1 / 6) / 2
    assert (row.better, row.worse, row.cells) == (1, 0, 2)
    # image 0 gains one target and loses one: it has no vote
    assert (row.more, row.fewer, row.p_value) == (7, 0, 2 / 2**7)
