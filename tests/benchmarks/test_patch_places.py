"""The study of places of patches, on verdicts made up by hand."""

from __future__ import annotations

import pytest

from tests.benchmarks.conftest import Script


def test_chance_is_the_binomial_where_all_images_are_alike(script: Script) -> None:
    found = script("patch_places.py").chance([0.25] * 3)
    assert found == pytest.approx([27 / 64, 27 / 64, 9 / 64, 1 / 64])


def test_a_choice_is_compared_with_every_place_and_with_the_best(script: Script) -> None:
    places = script("patch_places.py")
    # four images: one falls at every place, one at half of them, one at none, one at a quarter
    by_image = {0: (1, 1, 1, 1), 1: (1, 1, 0, 0), 2: (0, 0, 0, 0), 3: (0, 0, 0, 1)}
    corners = [(0, 0), (0, 4), (4, 0), (4, 4)]
    at = {corner: {image: bool(fell[n]) for image, fell in by_image.items()} for n, corner in enumerate(corners)}
    table = places.places_table("t", at, {"attention": at[0, 0], "one at random": at[4, 4]})
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["attention"] == ("2", "50.0 %", "", "")
    assert rows["one at random"] == ("2", "50.0 %", "1 / 1", "1")
    assert rows["best of all"] == ("3", "75.0 %", "0 / 1", "1")
    # 1 + 1/2 + 0 + 1/4 images in the mean; two or more fall with 1 - 1/2 * 3/4, two or fewer with 1 - 1/2 * 1/4
    assert rows["any, in the mean"] == ("1.8", "43.8 %", "", "1")
    assert places.p_of_chance([1, 0.5, 0, 0.25], 3) == pytest.approx(0.25)
