"""Attacks that minimise a norm, where the smallest perturbation is known; and the projection FAB stands on."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.conftest import batch, linear_victim, tiny_vit, toy_pictures
from vitattack.attacks import attack_text
from vitattack.attacks.losses.plain import Margin
from vitattack.attacks.minimum_norm.cw_l2 import CWL2
from vitattack.attacks.minimum_norm.projection import onto_plane
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.passes import counting_passes
from vitattack.models.victim import Victim
from vitattack.threats.lp import LpBall

MINIMAL = {
    ("fab", "linf"): "fab(stop=never)",
    ("fab", "l2"): "fab(stop=never)",
    ("fab_t", "linf"): "fab_t(stop=never)",
    ("fab_t", "l2"): "fab_t(stop=never)",
    ("fab_t-restarts", "linf"): "fab_t(restarts=2, targets=1, stop=never)",
    ("cw_l2", "l2"): "cw_l2(stop=never)",
    ("cw_l2-small-c", "l2"): "cw_l2(c=0.001, searches=9, stop=never)",
}
cases = pytest.mark.parametrize(("name", "norm"), MINIMAL)
BUDGET = {"linf": 0.2, "l2": 2.0}
N = 4


def run(
    text: str, victim: Victim, ball: LpBall, x: Tensor, y: Tensor | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    y = torch.zeros(len(x), dtype=torch.long) if y is None else y
    crafted = attack_text.build(text, ball)(victim, x, y, rng=SampleRng(0, tuple(range(len(x)))))
    return crafted.x_adv, dict(crafted.evidence)


@cases
def test_the_smallest_perturbation_of_a_linear_victim_is_found(name: str, norm: str) -> None:
    victim, slope = linear_victim(gap=1.0)
    x, _ = batch(N)
    lead = (victim(x)[:, 0] - victim(x)[:, 1]).detach()
    best = lead / (slope.abs().sum() if norm == "linf" else slope.norm())
    ball = LpBall(norm, BUDGET[norm])  # type: ignore[arg-type]
    assert (best < 0.8 * ball.eps).all()
    x_adv, evidence = run(MINIMAL[name, norm], victim, ball, x)
    assert evidence["fooled"].all() and (victim(x_adv).argmax(1) == 1).all()
    assert torch.allclose(ball.size(x, x_adv), evidence["distance"])
    assert (evidence["distance"] >= best * (1 - 1e-9)).all()
    assert (evidence["distance"] <= best * 1.05).all(), evidence["distance"] / best


@cases
def test_an_active_box_is_part_of_the_minimum(name: str, norm: str) -> None:
    """A third of the pixels can hardly move the way they should: the others must make up for them."""
    victim, x, lead, slope = boxed()
    best = torch.stack([smallest(row, slope, float(gap), norm) for row, gap in zip(x.flatten(1), lead, strict=True)])
    free = lead / (slope.abs().sum() if norm == "linf" else slope.norm())
    assert (best > 1.1 * free).all()  # the box matters
    ball = LpBall(norm, BUDGET[norm])  # type: ignore[arg-type]
    x_adv, evidence = run(MINIMAL[name, norm], victim, ball, x)
    assert evidence["fooled"].all() and ball.allows(x, x_adv).all()
    assert (evidence["distance"] >= best * (1 - 1e-6)).all()
    assert (evidence["distance"] <= best * 1.05).all(), evidence["distance"] / best


def boxed() -> tuple[Victim, Tensor, Tensor, Tensor]:
    """A linear victim, images of which a third of the pixels has hardly any room, the leads and the slope."""
    victim, slope = linear_victim(gap=1.0)
    x, _ = batch(N)
    up = slope.view(1, 3, 8, 8) > 0
    stuck = torch.rand(x.shape, generator=torch.Generator().manual_seed(5), dtype=x.dtype) < 0.3
    x = torch.where(stuck, torch.where(up, 0.998, 0.002), x)
    with torch.no_grad():
        victim.model.bias[1] += float((victim(x)[:, 0] - victim(x)[:, 1]).min()) - 1.0  # type: ignore[union-attr, index, operator]
        lead = victim(x)[:, 0] - victim(x)[:, 1]
    return victim, x, lead, slope


def smallest(x: Tensor, slope: Tensor, gap: float, norm: str) -> Tensor:
    """The smallest move along the boundary's normal that closes the gap inside the box, by bisection."""
    room = torch.where(slope > 0, 1 - x, x)

    def move(length: float) -> Tensor:
        wanted = torch.full_like(slope, length) if norm == "linf" else length * slope.abs()
        return torch.minimum(wanted, room)

    low, high = 0.0, 1e3
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if float((move(middle) * slope.abs()).sum()) < gap else (low, middle)
    return move(high).abs().max() if norm == "linf" else move(high).norm()


@cases
def test_a_success_beyond_the_budget_is_a_distance_and_not_a_claim(name: str, norm: str) -> None:
    victim, slope = linear_victim(gap=1.0)
    x, _ = batch(N)
    lead = (victim(x)[:, 0] - victim(x)[:, 1]).detach()
    best = lead / (slope.abs().sum() if norm == "linf" else slope.norm())
    ball = LpBall(norm, float(best.min()) / 2)  # type: ignore[arg-type]
    for stop in ("first_success", "never"):
        x_adv, evidence = run(MINIMAL[name, norm].replace("never", stop), victim, ball, x)
        assert not evidence["fooled"].any() and torch.equal(x_adv, x)
        assert (evidence["first_fooled"] == -1).all()
        assert (evidence["distance"] >= best * (1 - 1e-9)).all()
    assert (evidence["distance"] <= 1.05 * best).all()  # to the end: where only a verdict is wanted, fab stops asking


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_beyond_the_budget_a_step_of_fab_is_one_forward(norm: str) -> None:
    """Every iterate fools, none inside the budget: after the first, only points that could count are judged."""
    victim, slope = linear_victim(gap=1.0)
    x, _ = batch(N)
    ball = LpBall(norm, 0.3 / float(slope.abs().sum() if norm == "linf" else slope.norm()))  # type: ignore[arg-type]
    _, evidence = run("fab_t(targets=1, steps=40)", victim, ball, x)
    assert not evidence["fooled"].any()
    assert (evidence["forwards"] <= 40 + 3).all() and (evidence["backwards"] <= 40 + 1).all(), evidence["forwards"]
    _, thorough = run("fab_t(targets=1, steps=40, stop=never)", victim, ball, x)
    assert (thorough["forwards"] > 60).all()


@pytest.mark.parametrize(
    ("text", "norm"), [("fab(steps=4)", "linf"), ("fab_t(steps=4)", "l2"), ("cw_l2(steps=4)", "l2")]
)
def test_who_was_never_fooled_has_no_distance(text: str, norm: str) -> None:
    victim, _ = linear_victim(gap=1e4)
    x, _ = batch(N)
    _, evidence = run(text, victim, LpBall(norm, 0.01), x)  # type: ignore[arg-type]
    assert (evidence["distance"] == math.inf).all() and not evidence["fooled"].any()


@pytest.mark.parametrize(
    ("text", "forwards", "backwards"),
    [
        ("fab(steps=7)", 1 + 8, 7 * 4),  # the image; a start and 7 points; a gradient for each of 4 wrong classes
        ("fab_t(steps=7, targets=3)", 1 + 3 * 8, 3 * 7),
        ("fab_t(steps=7)", 1 + 4 * 8, 4 * 7),
        ("fab_t(steps=7, targets=3, restarts=2)", 1 + 6 * 8, 6 * 7),
    ],
)
def test_as_long_as_nothing_is_fooled_a_step_costs_one_forward(text: str, forwards: int, backwards: int) -> None:
    victim, _ = linear_victim(gap=1e4)
    x, _ = batch(N)
    _, evidence = run(text, victim, LpBall("linf", 0.01), x)
    assert (evidence["forwards"] == forwards).all() and (evidence["backwards"] == backwards).all()


@pytest.mark.parametrize("text", ["fab", "fab_t", "cw_l2"])
def test_an_image_that_is_wrong_already_has_nothing_to_cross(text: str) -> None:
    victim, _ = linear_victim(gap=-1.0)
    x, _ = batch(N)
    x_adv, evidence = run(text, victim, LpBall("l2", 0.01), x)
    assert evidence["fooled"].all() and (evidence["first_fooled"] == 0).all()
    assert (evidence["distance"] <= 1e-4).all() and float((x_adv - x).abs().max()) <= 1e-6


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_stopping_at_the_first_success_fools_the_same_samples(norm: str) -> None:
    victim, slope = linear_victim(gap=1.0)
    x, _ = batch(32)
    lead = (victim(x)[:, 0] - victim(x)[:, 1]).detach()
    best = (lead / (slope.abs().sum() if norm == "linf" else slope.norm())).sort().values
    eps = float(best[15] + best[16]) / 2  # half of them are out of reach
    for text in ["fab", "fab_t", *(["cw_l2"] if norm == "l2" else [])]:
        ball = LpBall(norm, eps)  # type: ignore[arg-type]
        early, late = (run(f"{text}(stop={stop})", victim, ball, x)[1] for stop in ("first_success", "never"))
        assert 0 < int(early["fooled"].sum()) < len(x)
        assert torch.equal(early["fooled"], late["fooled"])
        assert (early["forwards"] <= late["forwards"]).all() and early["forwards"].sum() < late["forwards"].sum()


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_projection_meets_the_plane_by_the_smallest_move_inside_the_box(norm: str) -> None:
    generator = torch.Generator().manual_seed(0)
    n, d = 64, 50
    x = torch.rand(n, d, generator=generator, dtype=torch.float64)
    x[:20] = x[:20].round()  # corners of the box: half of the pixels cannot move at all
    slope = torch.randn(n, d, generator=generator, dtype=torch.float64)
    slope[::7, :25] = 0.0
    room = torch.where(slope > 0, 1 - x, x)
    reach = (slope.abs() * room).sum(1)
    gap = -reach * torch.linspace(0.0, 0.999, n, dtype=torch.float64)
    move = onto_plane(x, slope, gap, norm)
    assert torch.allclose((slope * move).sum(1), -gap, atol=1e-12)
    assert ((x + move >= -1e-15) & (x + move <= 1 + 1e-15)).all()
    for i in range(1, n):
        best = float(smallest(x[i], slope[i], -float(gap[i]), norm))
        size = float(move[i].abs().max() if norm == "linf" else move[i].norm())
        assert size == pytest.approx(best, rel=1e-9)
    down = onto_plane(1 - x, -slope, gap, norm)  # the mirror image
    assert torch.allclose(down, -move, atol=1e-12)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_a_plane_out_of_reach_gives_the_corner_and_no_slope_gives_nothing(norm: str, scale: float) -> None:
    x = torch.tensor([[0.25, 0.5, 1.0], [0.25, 0.5, 1.0]])
    slope = torch.tensor([[1.0, -2.0, 0.0], [0.0, 0.0, 0.0]]) * scale
    move = onto_plane(x, slope, torch.tensor([-100.0, -100.0]) * scale, norm)
    assert torch.allclose(x + move, torch.tensor([[1.0, 0.0, 1.0], [0.25, 0.5, 1.0]]))
    assert torch.equal(onto_plane(x, slope, torch.zeros(2), norm), torch.zeros(2, 3))


@pytest.mark.parametrize(
    "text", ["fab(steps=0)", "fab_t(targets=0)", "fab(eta=0.5)", "fab(beta=0)", "fab_t(restarts=0)"]
)
def test_settings_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="fab"):
        attack_text.build(text, LpBall("linf", 0.1))


@pytest.mark.parametrize("text", ["cw_l2(steps=0)", "cw_l2(c=0)", "cw_l2(kappa=-1)", "cw_l2(kappa=inf)"])
def test_cw_settings_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="cw_l2"):
        attack_text.build(text, LpBall("l2", 0.1))


def test_attacks_without_a_loss_refuse_one() -> None:
    for text in ("fab", "fab_t", "cw_l2"):
        with pytest.raises(UsageError, match="pgd"):
            attack_text.build(text, LpBall("l2", 0.1)).with_loss(Margin())


@pytest.mark.parametrize("classes", [2, 3, 100])
@pytest.mark.parametrize("text", ["fab(steps=5)", "fab_t(steps=5)", "cw_l2(steps=20)", "square(queries=50)"])
def test_any_number_of_classes_is_fine(text: str, classes: int) -> None:
    weight = torch.randn(classes, 192, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / 10
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, classes).double())
    model[1].weight.data = weight
    victim = Victim(model, name="any", num_classes=classes, input_size=8)
    x, _ = batch(6)
    y = victim(x).argmax(1)
    ball = LpBall("l2", 0.5)
    x_adv, evidence = run(text, victim, ball, x, y)
    assert ball.allows(x, x_adv).all()
    assert torch.equal(evidence["fooled"], victim(x_adv).argmax(1) != y)
    if text.startswith("fab"):
        nearest = torch.stack([distances(row, weight) for row in victim(x)]).amin(1)
        assert torch.allclose(evidence["distance"], nearest, rtol=0.1)


def distances(logits: Tensor, weight: Tensor) -> Tensor:
    """In l2 to the boundaries of all wrong classes; infinite for the class itself."""
    true = int(logits.argmax())
    return ((logits[true] - logits) / (weight[true] - weight).norm(dim=1)).nan_to_num(math.inf).detach()


def test_kappa_asks_for_a_lead() -> None:
    victim, _ = linear_victim(gap=1.0)
    x, _ = batch(N)
    for kappa in (0.0, 2.0):
        x_adv, _ = run(f"cw_l2(kappa={kappa}, stop=never)", victim, LpBall("l2", 5.0), x)
        lead = victim(x_adv)[:, 1] - victim(x_adv)[:, 0]
        assert (lead >= kappa).all() and (lead <= kappa + 0.3).all()


def test_cw_searches_for_its_weight_as_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tenfold until something works, then halves between the bounds; a tenth search and later ends at the upper one."""
    outcomes = iter([False, False, True, False, True, True, False, True, False, True])
    seen: list[float] = []

    def search(self: object, victim: object, y: Tensor, c: Tensor, *rest: object) -> Tensor:
        seen.append(float(c[0]))
        return torch.tensor([next(outcomes)])

    monkeypatch.setattr(CWL2, "_search", search)
    x = torch.full((1, 3, 8, 8), 0.5, dtype=torch.float64)
    victim, _ = linear_victim()
    CWL2(LpBall("l2", 1.0), searches=10, c=0.001)(victim, x, torch.zeros(1).long(), rng=SampleRng(0, (0,)))
    assert seen == pytest.approx([0.001, 0.01, 0.1, 0.055, 0.0775, 0.06625, 0.060625, 0.0634375, 0.06203125, 0.0634375])


def test_cw_ends_a_search_that_stands_still() -> None:
    class Flat(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 0 * x.flatten(1).sum(1, keepdim=True) + torch.tensor([1.0, 0.0])

    victim = Victim(Flat(), name="flat", num_classes=2, input_size=8)
    x, _ = batch(2)
    for abort, forwards in ((True, 3 * 21), (False, 3 * 200)):
        _, evidence = run(f"cw_l2(searches=3, abort={abort})", victim, LpBall("l2", 1.0), x)
        assert (evidence["forwards"] == forwards).all()
        assert (evidence["backwards"] == forwards - 3).all()


@pytest.mark.parametrize(
    "text",
    [
        "fp64(fab_t(steps=4, targets=2))",
        "fp64(fab(steps=3))",
        "fp64(cw_l2(searches=2, steps=8))",
        "fp64(square(queries=30))",
    ],
)
def test_through_a_view_the_plain_victim_decides_and_every_pass_is_claimed(text: str) -> None:
    victim, x = tiny_vit(), toy_pictures()
    with torch.no_grad():
        y = victim(x).argmax(1)
    ball = LpBall("l2", 0.7)
    with counting_passes(victim) as passes:
        crafted = attack_text.build(text, ball)(victim, x, y, rng=SampleRng(0, tuple(range(12))))
    assert passes.forwards == int(crafted.evidence["forwards"].sum())
    assert passes.backwards == int(crafted.evidence["backwards"].sum())
    assert crafted.evidence["fooled"].any()
    assert torch.equal(victim(crafted.x_adv).argmax(1) != y, crafted.evidence["fooled"])
