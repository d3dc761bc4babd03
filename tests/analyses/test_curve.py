"""The curve of robust accuracy: it is exact on a linear model, clean at 0, and made of what the judge confirmed."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from tests.conftest import batch, linear_victim, tiny_vit, toy_pictures
from vitattack.analyses.analyze import analyze
from vitattack.analyses.strength.curve import Found, optimality
from vitattack.core.errors import UsageError


def test_the_curve_of_a_linear_model_is_that_of_its_distances() -> None:
    victim, slope = linear_victim(gap=1.0)
    victim = victim.float()
    x = batch(12)[0].float()
    lead = (victim(x)[:, 0] - victim(x)[:, 1]).detach()
    best = (lead / slope.norm()).sort().values.tolist()
    middle = [(a + b) / 2 for a, b in itertools.pairwise(best)][::4]
    found = analyze(
        "curve",
        victim,
        norm="l2",
        at=("0", *map(str, middle)),
        attacks=("fmn(steps=60)",),
        data=(x, torch.zeros(12, dtype=torch.long)),
        threads=1,
    )
    assert [row["correct"] for row in found.rows] == [12, *(sum(d > eps for d in best) for eps in middle)]
    assert found.tables()[1].rows[0][0] == "fmn(steps=60, stop=never)"


def test_eps_0_is_clean_accuracy_and_the_best_attack_of_each_image_counts() -> None:
    x = toy_pictures(8)
    y = tiny_vit()(x).argmax(1)
    y[:2] = (y[:2] + 1) % 10
    attacks = ("fmn(steps=12)", "deepfool(steps=4)")
    found = analyze("curve", tiny_vit(), norm="linf", attacks=attacks, at=("0", "1/255"), data=(x, y), threads=1)
    assert (found.rows[0]["eps"], found.rows[0]["correct"]) == (0.0, 6)
    both = found.rows[1]["correct"]
    for attack in attacks:
        alone = analyze("curve", tiny_vit(), norm="linf", attacks=(attack,), at=("1/255",), data=(x, y), threads=1)
        assert int(alone.rows[0]["correct"] or 0) >= int(both or 0)


def test_optimality_by_hand() -> None:
    one, two = Found("a", (0.0, 1.0, 4.0), 0), Found("b", (0.0, 2.0, 2.0), 0)
    best = Found("all", (0.0, 1.0, 2.0), 0)
    # areas up to 2: 1.0 and 4/3, the best 1.0; nothing at all would be 4/3
    assert optimality(one, best) == 1.0 and optimality(two, best) == 0.0
    assert optimality(best, Found("all", (0.0, 0.0), 0)) is None
    assert optimality(Found("c", (0.0, math.inf, math.inf), 0), best) == 0.0


def test_attacks_that_do_not_minimise_and_budgets_that_are_none_are_refused() -> None:
    data = (toy_pictures(2), torch.zeros(2, dtype=torch.long))
    for settings, message in (
        ({"attacks": ("pgd",)}, "smallest perturbation, not pgd"),
        ({"at": ("far",)}, "not a number"),
        ({"at": ("-1",)}, "0 and more"),
        ({"norm": "l0", "attacks": ("ddn",)}, "l0"),
        ({"attacks": ()}, "names none"),
    ):
        with pytest.raises(UsageError, match=message):
            analyze("curve", tiny_vit(), data=data, threads=1, **settings)
