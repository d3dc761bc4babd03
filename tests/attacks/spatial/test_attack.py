"""The grid of shifts and rotations against a plain loop over it; what order, report and calibration may not change."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import tiny_vit, toy_pictures
from vitattack.attacks import attack_text
from vitattack.attacks.base import Crafted
from vitattack.attacks.losses.plain import Margin
from vitattack.attacks.spatial.attack import SpatialGrid, _waves
from vitattack.attacks.spatial.grid import TransformGrid
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.passes import counting_passes
from vitattack.models.victim import Victim, frozen
from vitattack.threats.base import parse_threat
from vitattack.threats.spatial import Spatial, transform

SMALL = Spatial(1.5, 8.0)  # where the toy falls for some and not for others
GRID = "spatial(shifts=3, angles=5)"
COUNT = 45


def toy_data(n: int = 16) -> tuple[Victim, Tensor, Tensor]:
    victim = tiny_vit()
    x = toy_pictures(n, seed=5)
    with torch.no_grad():
        return victim, x, victim(x).argmax(1)


def rng(n: int, seed: int = 0) -> SampleRng:
    return SampleRng(seed, tuple(range(n)))


def grid(text: str, threat: Spatial = SMALL) -> SpatialGrid:
    attack = attack_text.build(text, threat)
    assert isinstance(attack, SpatialGrid)
    return attack


def calibration(victim: Victim, n: int = 8) -> SpatialGrid:
    other = toy_pictures(n, seed=99)
    with torch.no_grad():
        labels = victim(other).argmax(1)
    return grid(GRID).prepare(victim, lambda: (other, labels), rng=rng(1))


@cache
def brute() -> Tensor:
    """(B, 3, 3, 5) margins by the plainest loop there is: one image under one transform at a time."""
    victim, x, y = toy_data()
    rows = []
    for image, label in zip(x, y, strict=True):
        for tx in torch.linspace(-SMALL.shift, SMALL.shift, 3):
            for ty in torch.linspace(-SMALL.shift, SMALL.shift, 3):
                for angle in torch.linspace(-SMALL.angle, SMALL.angle, 5):
                    with torch.no_grad():
                        logits = victim(transform(image[None], tx[None], ty[None], angle[None]))
                    rows.append(Margin()(logits, label[None]))
    return torch.cat(rows).view(16, 3, 3, 5)


def check(crafted: Crafted, margins: Tensor, *, report: bool = True) -> None:
    """Who is fooled, by what alone, and that each candidate is what its evidence says."""
    fooled = margins > 0
    assert 3 <= int(fooled.flatten(1).any(1).sum()) <= len(margins) - 3, "a workload that tells nothing"
    assert torch.equal(crafted.evidence["fooled"], fooled.flatten(1).any(1))
    if report:
        assert torch.equal(crafted.evidence["fooled_by_shift"], fooled[..., 2].flatten(1).any(1))
        assert torch.equal(crafted.evidence["fooled_by_rotation"], fooled[:, 1, 1].any(1))


# The grid itself.


def test_the_default_grid_is_that_of_the_paper() -> None:
    attack = grid("spatial", Spatial())
    table = attack.grid.table(attack.threat, torch.zeros(1, 3, 384, 384))
    assert table.shape == (2511, 3) and len(table.unique(dim=0)) == 2511
    assert table[attack.grid.identity].tolist() == [0, 0, 0]
    assert table.amin(0).tolist() == [-16, -16, -30] and table.amax(0).tolist() == [16, 16, 30]
    assert table[:, 0].unique().tolist() == [-16, -12, -8, -4, 0, 4, 8, 12, 16]
    assert torch.allclose(table[:, 2].unique().diff(), torch.tensor(2.0).double())
    shifts, rotations = (sorted(part) for part in (attack.grid.shifts, attack.grid.rotations))
    assert len(shifts) == 81 and len(rotations) == 31
    assert not table[shifts, 2].any() and len(table[shifts].unique(dim=0)) == 81
    assert not table[rotations, :2].any() and len(table[rotations].unique(dim=0)) == 31


def test_percent_give_the_grid_of_the_input() -> None:
    attack = grid("spatial", Spatial(12.5, 30.0, "%"))
    table = attack.grid.table(attack.threat, torch.zeros(1, 3, 16, 40))
    assert table.amax(0).tolist() == [5, 2, 30]


def test_an_axis_that_does_not_move_has_one_point() -> None:
    assert len(grid("spatial", Spatial(0.0, 30.0)).grid) == 31
    assert len(grid("spatial", Spatial(16.0, 0.0)).grid) == 81
    still = grid("spatial", Spatial(0.0, 0.0))
    victim, x, y = toy_data(3)
    crafted = still(victim, x, y, rng=rng(3))
    assert torch.equal(crafted.x_adv, x) and crafted.evidence["forwards"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(("shifts", "angles"), [(9, 31), (3, 5), (1, 7), (5, 1), (1, 1), (7, 9)])
def test_every_order_is_a_permutation(shifts: int, angles: int) -> None:
    lattice = TransformGrid(True, True, shifts, angles)
    everything = list(range(len(lattice)))
    coarse = lattice.coarse()
    assert lattice.identity in coarse and len(coarse) <= 63
    assert sorted(lattice.fixed_order()) == everything
    margins = torch.randn(len(coarse), 6, generator=torch.Generator().manual_seed(1))
    margins[0, 0] = torch.nan
    assert sorted(lattice.learned_order(margins)) == everything
    assert sorted(lattice.learned_order(margins[:, :0])) == everything


def test_the_learned_order_covers_images_greedily_by_hand() -> None:
    lattice = TransformGrid(
        True, False, 3, 1
    )  # nine shifts, all of them coarse; 2, 6 and 8 are corners, 3, 5 and 7 edges
    margins = -torch.ones(9, 20)
    margins[5, :9] = 1  # 9 images + 1 for an edge
    margins[2, :7] = 1  # 7 images, all among those nine, + 2 for a corner
    margins[7, 9:13] = 1  # 4 others + 1
    # after 5 the corner 2 is worth 7/4 + 2 and the edge 7 still 4 + 1; the next corner fools nobody
    assert lattice.learned_order(margins)[:4] == [5, 7, 2, 0]


def test_waves_double_and_hold_everything_once() -> None:
    sizes = [len(wave) for wave in _waves(range(200))]
    assert sizes[:8] == [1, 1, 2, 4, 8, 16, 32, 32]
    assert torch.equal(torch.cat(list(_waves(range(200)))), torch.arange(200))


# Verdicts.


def test_verdicts_are_those_of_brute_force_in_any_order() -> None:
    victim, x, y = toy_data()
    margins = brute()
    shuffled = list(range(COUNT))
    random.Random(3).shuffle(shuffled)
    for attack in (grid(GRID), calibration(victim), replace(grid(GRID), order=tuple(shuffled))):
        crafted = attack(victim, x, y, rng=rng(16))
        check(crafted, margins)
        assert SMALL.allows(x, crafted.x_adv, crafted.evidence).all()
        with torch.no_grad():
            assert torch.equal(victim(crafted.x_adv).argmax(1) != y, crafted.evidence["fooled"])
    assert calibration(victim).order is not None
    plain = grid("spatial(shifts=3, angles=5, report=False)")(victim, x, y, rng=rng(16))
    check(plain, margins, report=False)
    assert "fooled_by_shift" not in plain.evidence


def test_a_robust_image_costs_the_grid_and_a_fooled_one_less() -> None:
    victim, x, y = toy_data()
    for text in (GRID, "spatial(shifts=3, angles=5, report=False)"):
        with counting_passes(victim) as passes:
            evidence = grid(text)(victim, x, y, rng=rng(16)).evidence
        assert passes.forwards == int(evidence["forwards"].sum())
        robust = ~evidence["fooled"]
        assert (evidence["forwards"][robust] == COUNT).all()
        assert (evidence["forwards"] <= COUNT).all()
        first = evidence["first_fooled"]
        assert (first[robust] == -1).all() and (first[~robust] < evidence["forwards"][~robust]).all()


def test_a_robust_image_comes_with_the_transform_of_the_largest_margin() -> None:
    victim, x, y = toy_data()
    margins = brute().flatten(1)
    crafted = grid(GRID)(victim, x, y, rng=rng(16))
    robust = ~crafted.evidence["fooled"]
    with torch.no_grad():
        found = Margin()(victim(crafted.x_adv), y)
    assert torch.allclose(found[robust], margins.amax(1)[robust], atol=1e-3)


def test_the_full_grid_counts_and_finds_the_worst() -> None:
    victim, x, y = toy_data()
    margins = brute()
    attack = grid("spatial(shifts=3, angles=5, full_grid=True)")
    crafted = attack(victim, x, y, rng=rng(16))
    check(crafted, margins)
    assert torch.equal(crafted.evidence["fooling"], (margins > 0).flatten(1).sum(1))
    assert set(crafted.evidence["transforms"].tolist()) == {COUNT} == set(crafted.evidence["forwards"].tolist())
    with torch.no_grad():
        found = Margin()(victim(crafted.x_adv), y)
    assert torch.allclose(found, margins.flatten(1).amax(1), atol=1e-3)
    assert SMALL.allows(x, crafted.x_adv, crafted.evidence).all()
    assert not attack.traits.learns


def test_passes_do_not_depend_on_company() -> None:
    victim, x, y = toy_data(6)
    together = grid(GRID)(victim, x, y, rng=rng(6))
    for i in range(6):
        alone = grid(GRID)(victim, x[i : i + 1], y[i : i + 1], rng=SampleRng(0, (i,)))
        for name, rows in alone.evidence.items():
            assert rows[0] == together.evidence[name][i], name
        assert torch.equal(alone.x_adv[0], together.x_adv[i])


def test_outputs_that_are_not_finite_fool_nobody() -> None:
    class Fussy(nn.Module):
        """Errs on every image but the unmoved one, and half of the time says NaN with it."""

        def forward(self, x: Tensor) -> Tensor:
            black = (x[:, 0] < 0.4).flatten(1).sum(1)
            logits = torch.stack([torch.where(black > 0, -1.0, 1.0), torch.zeros(len(x))], 1)
            return torch.where((black > 40)[:, None], torch.nan, logits)

    victim = Victim(Fussy(), name="fussy", num_classes=2, input_size=16)
    x, y = torch.full((2, 3, 16, 16), 0.5), torch.zeros(2, dtype=torch.long)
    far = Spatial(6.0, 0.0)  # 6 rows or columns are 96 black pixels, a corner more
    crafted = grid("spatial(shifts=3)", far)(victim, x, y, rng=rng(2))
    assert not crafted.evidence["fooled"].any() and torch.equal(crafted.x_adv, x)
    near = grid("spatial(shifts=3)", Spatial(2.0, 0.0))(victim, x, y, rng=rng(2))  # 32 along a side, 60 in a corner
    assert near.evidence["fooled"].all() and victim(near.x_adv).isfinite().all()


def test_an_image_that_is_wrong_already_leaves_unmoved() -> None:
    victim, x, y = toy_data(4)
    crafted = grid(GRID)(victim, x, (y + 1) % 10, rng=rng(4))
    assert torch.equal(crafted.x_adv, x) and crafted.evidence["fooled"].all()
    assert crafted.evidence["forwards"].tolist() == [1] * 4
    assert crafted.evidence["fooled_by_shift"].all() and crafted.evidence["fooled_by_rotation"].all()


def test_the_grid_of_the_paper_on_images_that_are_not_square() -> None:
    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            score = x.flatten(1).mean(1) - 0.28
            return torch.stack([score, -score], 1)

    victim = Victim(Mean(), name="mean", num_classes=2, input_size=20)
    x = torch.full((2, 3, 20, 36), 0.5)
    x[1] = 0.9
    y = torch.zeros(2, dtype=torch.long)
    crafted = grid("spatial", Spatial(8.0, 30.0))(victim, x, y, rng=rng(2))
    assert crafted.evidence["fooled"].tolist() == [True, False]
    # black eats the mean: 12 of 20 rows and 28 of 36 columns stay, 47 %, which 0.5 cannot spare and 0.9 can
    assert crafted.evidence["forwards"][1] == 2511


# Learning.


def test_what_is_learned_is_recalled_and_costs_less_than_a_robust_image() -> None:
    victim, _, _ = toy_data(1)
    other = toy_pictures(64, seed=99)
    with torch.no_grad():
        labels = victim(other).argmax(1)
    attack = grid("spatial", Spatial())
    assert attack.traits.learns
    with counting_passes(victim) as passes:
        ready = attack.prepare(victim, lambda: (other, labels), rng=rng(1))
    assert passes.forwards == 32 * 64 < 2511
    content = ready.learned()
    assert content is not None and attack.recall(victim, content) == ready
    assert ready.order != attack.grid.fixed_order()


@pytest.mark.parametrize("order", [None, [], [0] * COUNT, list(range(COUNT - 1)), ["a"] * COUNT, {"a": 1}])
def test_a_broken_order_is_refused(order: object) -> None:
    with pytest.raises(UsageError, match="--fresh"):
        grid(GRID).recall(toy_data(1)[0], {"order": order})


def test_without_calibration_images_the_order_is_fixed() -> None:
    victim, x, y = toy_data(4)
    attack = grid(GRID)
    assert attack.prepare(victim, lambda: (x[:0], y[:0]), rng=rng(1)) == attack
    wrong = attack.prepare(victim, lambda: (x, (y + 1) % 10), rng=rng(1))  # nothing to learn from clean errors
    assert wrong.order is not None and sorted(wrong.order) == list(range(COUNT))
    assert not grid("spatial(calibration=0)").traits.learns and attack.learned() is None


# Random transforms.


def test_random_transforms_fill_the_range_and_are_each_images_own() -> None:
    class Stubborn(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([torch.ones(len(x)), torch.zeros(len(x))], 1)

    victim = Victim(Stubborn(), name="stubborn", num_classes=2, input_size=8)
    threat = Spatial(2.0, 20.0)
    x, y = torch.rand(200, 1, 8, 8), torch.zeros(200, dtype=torch.long)
    crafted = attack_text.build("spatial_random(k=1)", threat)(victim, x, y, rng=rng(200))
    for name, most in (("tx", 2.0), ("ty", 2.0), ("angle", 20.0)):
        values = crafted.evidence[name]
        assert len(values.unique()) == 200 and float(values.abs().max()) <= most
        assert float(values.abs().mean()) == pytest.approx(most / 2, rel=0.15)
        assert abs(float(values.mean())) < most * 0.15
    assert threat.allows(x, crafted.x_adv, crafted.evidence).all()
    assert (crafted.evidence["forwards"] == 1).all()


def test_more_random_transforms_fool_no_less_and_the_grid_of_brute_force_agrees() -> None:
    victim, x, y = toy_data()
    fooled = [
        attack_text.build(f"spatial_random(k={k})", SMALL)(victim, x, y, rng=rng(16)).evidence for k in (1, 10, 40)
    ]
    counts = [int(evidence["fooled"].sum()) for evidence in fooled]
    assert counts[0] <= counts[1] <= counts[2] and counts[2] > counts[0]
    assert (fooled[1]["fooled"] | ~fooled[0]["fooled"]).all()  # the first draws are the same
    assert (fooled[2]["forwards"][~fooled[2]["fooled"]] == 40).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("spatial(shifts=4)", "odd number"),
        ("spatial(angles=0)", "odd number"),
        ("spatial(shifts=1001, angles=1001)", "too large"),
        ("spatial(calibration=-1)", "0 (a fixed order) or more"),
        ("spatial_random(k=0)", "draw 1 to 1000000"),
        ("pgd", "not defined for spatial threats: use --threat linf:8/255"),
    ],
)
def test_wrong_settings_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        attack_text.build(text, parse_threat("spatial"))
    assert message in str(caught.value)


def test_the_grid_is_not_for_balls() -> None:
    with pytest.raises(UsageError, match="use --threat spatial"):
        attack_text.build("spatial", parse_threat("linf:8/255"))


def test_equal_settings_have_one_text() -> None:
    assert attack_text.canonical("spatial(shifts=9, angles=31, calibration=32)") == "spatial"
    assert attack_text.canonical("spatial(full_grid=True, report=False, calibration=5)") == "spatial(full_grid=True)"
    assert attack_text.canonical("spatial_random(k=10)") == "spatial_random"


def test_parameters_are_left_as_found() -> None:
    victim, x, y = toy_data(2)
    with frozen(victim):
        grid(GRID)(victim, x, y, rng=rng(2))
    assert all(p.requires_grad for p in victim.parameters())
