"""DDN, FMN, sigma-zero and DeepFool on linear victims, where the smallest perturbation is known in every norm, box included."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.attacks.minimum_norm.test_min_norm import boxed, run, smallest
from tests.conftest import tiny_vit, toy_pictures
from vitattack.attacks import attack_text
from vitattack.attacks.minimum_norm.fmn import FMNInRounds
from vitattack.attacks.price import PriceQuery
from vitattack.core.errors import UsageError
from vitattack.models.passes import counting_passes
from vitattack.models.victim import Victim
from vitattack.threats.lp import LpBall
from vitattack.threats.sparse import L0Ball, L1Ball

WIDE = {
    "linf": LpBall("linf", 1.0),
    "l2": LpBall("l2", 50.0),
    "l1": L1Ball("l1", 100.0),
    "l0": L0Ball("l0", 192.0, "features"),
    "l0px": L0Ball("l0", 64.0, "px"),
}
CASES = [
    ("ddn(steps=400, gamma=0.02, stop=never)", "l2", 1.01),
    ("fmn(steps=300, stop=never)", "linf", 1.01),
    ("fmn(steps=300, stop=never)", "l2", 1.01),
    ("fmn(steps=300, stop=never)", "l1", 1.05),
    ("fmn(steps=300, stop=never)", "l0", 1.0),
    ("fmn(steps=300, stop=never)", "l0px", 1.0),
    ("fmn(steps=100, stop=never)", "linf", 1.01),
    ("fmn(steps=100, stop=never)", "l2", 1.01),
    ("fmn(steps=100, stop=never)", "l1", 1.05),
    ("fmn(steps=100, stop=never)", "l0", 1.0),
    ("fmn(steps=300, stop=never, preset=paper)", "linf", 1.01),
    ("fmn(steps=300, stop=never, preset=paper)", "l2", 1.01),
    ("fmn(steps=300, stop=never, preset=paper)", "l1", 1.05),
    ("fmn(steps=300, stop=never, preset=paper)", "l0", 1.0),
    ("sigma_zero(steps=300, stop=never)", "l0", 1.0),
    ("sigma_zero(steps=300, stop=never)", "l0px", 1.0),
]


def fewest(gains: Tensor, gap: float) -> float:
    """How many of these gains close the gap, the largest first."""
    return float((gains.sort(descending=True).values.cumsum(0) < gap).sum() + 1)


def least(x: Tensor, slope: Tensor, gap: float, norm: str) -> float:
    """The size of the smallest perturbation inside the box."""
    room = torch.where(slope > 0, 1 - x, x)
    gains = room * slope.abs()
    if norm == "l0":
        return fewest(gains, gap)
    if norm == "l0px":
        return fewest(gains.view(3, -1).sum(0), gap)
    if norm != "l1":
        return float(smallest(x, slope, gap, norm))
    order = slope.abs().argsort(descending=True)
    spent = 0.0
    for place in order:  # the steepest pixels first, each as far as it goes
        length = min(float(room[place]), gap / float(slope[place].abs()))
        spent, gap = spent + length, gap - length * float(slope[place].abs())
        if gap <= 1e-15:
            break
    return spent


@pytest.mark.parametrize(("text", "norm", "factor"), CASES, ids=lambda value: str(value).partition("(")[0])
def test_the_smallest_perturbation_in_the_box_is_found(text: str, norm: str, factor: float) -> None:
    victim, x, lead, slope = boxed()
    best = torch.tensor([least(row, slope, float(gap), norm) for row, gap in zip(x.flatten(1), lead, strict=True)])
    x_adv, evidence = run(text, victim, WIDE[norm], x)
    distance = evidence["distance"]
    assert evidence["fooled"].all() and WIDE[norm].allows(x, x_adv).all()
    assert torch.allclose(WIDE[norm].size(x, x_adv), distance)
    more = 1 if "sigma" in text else 0  # its threshold may keep one that is not needed
    assert (distance >= best * (1 - 1e-6)).all() and (distance <= best * factor + more).all(), distance / best


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_deepfool_crosses_the_nearest_of_several_linear_boundaries_in_one_step(norm: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 6)).double()
    victim = Victim(model, name="linear", num_classes=6, input_size=8).double().eval()
    x = torch.full((3, 3, 8, 8), 0.5, dtype=torch.double) + 0.1 * torch.rand(3, 3, 8, 8, dtype=torch.double)
    logits, weight = victim(x).detach(), model[1].weight.detach()
    y = logits.argmax(1)
    slopes = weight[None] - weight[y][:, None]
    dual = slopes.abs().sum(2) if norm == "linf" else slopes.norm(dim=2)
    gaps = logits.gather(1, y[:, None]) - logits
    nearest = torch.where(gaps > 0, gaps / dual.clamp_min(1e-12), torch.inf).amin(1)
    _, evidence = run("deepfool", victim, WIDE[norm], x, y)
    assert torch.allclose(evidence["distance"], 1.02 * (nearest + 1e-4), rtol=1e-6)
    assert evidence["forwards"].tolist() == [2, 2, 2] and evidence["backwards"].tolist() == [5, 5, 5]


@pytest.mark.parametrize(
    ("text", "norm"),
    [
        ("ddn(steps=7)", "l2"),
        ("fmn(steps=7)", "linf"),
        ("fmn(steps=43)", "l2"),
        ("fmn(steps=7, preset=paper)", "linf"),
        ("sigma_zero(steps=7)", "l0"),
        ("deepfool(steps=3)", "linf"),
    ],
)
def test_passes_are_those_of_the_price_where_nothing_falls(text: str, norm: str) -> None:
    victim, x = tiny_vit(), toy_pictures(5)
    ball = {"l2": LpBall("l2", 1e-4), "linf": LpBall("linf", 1e-6), "l0": L0Ball("l0", 0.0, "px")}[norm]
    price = attack_text.build(text, ball).price(PriceQuery(10, ball)).victim
    with counting_passes(victim) as passes:
        _, evidence = run(text, victim, ball, x, victim(x).argmax(1))
    forwards, backwards = evidence["forwards"], evidence["backwards"]
    assert (forwards <= price.forwards).all() and (backwards <= price.backwards).all()
    if text != "deepfool(steps=3)":  # which leaves with a success of any size
        assert (forwards == price.forwards).all() and (backwards == price.backwards).all()
    assert passes.forwards >= forwards.max() and passes.backwards >= backwards.max()


@pytest.mark.parametrize("norm", ["linf", "l2", "l1", "l0"])
def test_the_boundary_to_a_less_likely_class_is_found_where_it_is_nearer(norm: str) -> None:
    """The likeliest wrong class is four times further than the third: the rounds look at both."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 4)).double()
    layer = model[1]
    assert isinstance(layer, torch.nn.Linear)
    x = torch.full((2, 3, 8, 8), 0.5, dtype=torch.double)
    with torch.no_grad():
        layer.weight[0] = 0
        layer.bias[:] = torch.tensor([1.0, 0.8, 0.75, 0.7])
        for row, length in ((1, 0.5), (2, 0.5), (3, 4.0)):
            layer.weight[row] *= length / layer.weight[row].norm()
        layer.bias[1:] -= layer.weight[1:] @ x[0].flatten()  # the logits of the image are the biases above
    victim = Victim(model, name="linear", num_classes=4, input_size=8).double().eval()
    assert victim(x)[0].argsort(descending=True).tolist() == [0, 1, 2, 3]
    y, third = torch.zeros(2, dtype=torch.long), layer.weight[3].detach()
    best = least(x[0].flatten(), third, 0.3, norm)
    _, evidence = run("fmn(steps=60, stop=never)", victim, WIDE[norm], x, y)
    assert (evidence["distance"] <= best * 1.02).all()
    _, single = run("fmn(steps=60, targets=1, stop=never)", victim, WIDE[norm], x, y)
    assert (single["distance"] > 1.2 * best).all()


class Curved(torch.nn.Module):
    """A class that gains less and less from every pixel that is made lighter."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = torch.nn.Parameter(0.2 + torch.rand(192, generator=torch.Generator().manual_seed(0)).double())

    def forward(self, x: Tensor) -> Tensor:
        change = x.flatten(1) - 0.5
        lead = change @ self.slope - change.square().sum(1) / 2 - 0.5
        return torch.stack([0 * lead, lead], 1)

    def least_in_l1(self) -> float:
        """The sum of the changes max(0, slope - level) at the level where they just reach the boundary, by bisection."""
        slope, low, high = self.slope.detach(), 0.0, float(self.slope.detach().max())
        for _ in range(100):
            level = (low + high) / 2
            change = (slope - level).clamp_min(0)
            reached = bool((slope * change - change.square() / 2).sum() > 0.5)
            low, high = (level, high) if reached else (low, level)
        return float((slope - low).clamp_min(0).sum())


def test_few_features_end_where_a_curved_boundary_is_nearest() -> None:
    model = Curved().eval()
    victim = Victim(model, name="curved", num_classes=2, input_size=8)
    x = torch.full((1, 3, 8, 8), 0.5, dtype=torch.double)
    _, evidence = run("fmn(stop=never)", victim, WIDE["l1"], x, torch.zeros(1, dtype=torch.long))
    assert model.least_in_l1() * (1 - 1e-6) <= float(evidence["distance"]) <= model.least_in_l1() * (1 + 1e-4)


@pytest.mark.parametrize(("steps", "classes"), [(100, (6, 6, 4, 4)), (300, (6, 6, 6, 6)), (1000, (9, 9, 9, 9))])
def test_long_runs_of_fmn_look_towards_more_classes(steps: int, classes: tuple[int, ...]) -> None:
    built = (attack_text.build(f"fmn(steps={steps})", WIDE[norm]) for norm in ("linf", "l2", "l1", "l0"))
    assert tuple(attack.targets for attack in built if isinstance(attack, FMNInRounds)) == classes


def test_there_are_no_more_rounds_than_wrong_classes() -> None:
    victim, x, _, _ = boxed()
    wrong = victim(x).shape[1] - 1
    _, many = run(f"fmn(steps=60, targets={wrong + 3}, stop=never)", victim, WIDE["l2"], x)
    _, all_of_them = run(f"fmn(steps=60, targets={wrong}, stop=never)", victim, WIDE["l2"], x)
    assert torch.equal(many["distance"], all_of_them["distance"])


def test_a_sample_leaves_with_its_first_success_within_the_budget() -> None:
    victim, x, _, _ = boxed()
    _, quick = run("fmn(steps=100)", victim, WIDE["l2"], x)
    _, whole = run("fmn(steps=100, stop=never)", victim, WIDE["l2"], x)
    assert quick["fooled"].all() and (quick["forwards"] < whole["forwards"]).all()
    assert (whole["distance"] <= quick["distance"]).all()


def test_a_flat_model_is_left_alone() -> None:
    class Flat(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 0 * x.flatten(1)[:, :3] + torch.tensor([1.0, 0.0, 0.0])

    victim = Victim(Flat(), name="flat", num_classes=3, input_size=32).eval()
    x = toy_pictures(3)
    for text, norm in (("ddn(steps=5)", "l2"), ("fmn(steps=5)", "linf"), ("deepfool(steps=3)", "l2")):
        x_adv, evidence = run(text, victim, WIDE[norm], x)
        assert torch.equal(x_adv, x) and not evidence["fooled"].any() and evidence["distance"].isinf().all()


@pytest.mark.parametrize(
    ("text", "norm", "message"),
    [
        ("ddn(steps=0)", "l2", "at least 1 step"),
        ("ddn(gamma=1)", "l2", "gamma between 0 and 1"),
        ("fmn(alpha=0)", "l1", "positive alpha"),
        ("fmn(targets=0)", "l1", "at least 1 target"),
        ("fmn(targets=2, preset=paper)", "l1", "no targets"),
        ("sigma_zero(sigma=0)", "l0", "positive sigma"),
        ("deepfool(classes=1)", "l2", "2 classes"),
        ("ddn", "linf", "l2"),
        ("sigma_zero", "l1", "l0"),
    ],
)
def test_wrong_settings_are_refused(text: str, norm: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        attack_text.build(text, WIDE[norm])
