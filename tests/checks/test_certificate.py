"""The certificate: planted examples exist, attacks that follow gradients find them, and models that hide gradients show."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import tiny_vit, toy_pictures
from vitattack.checks.certificate import certify, edge_points, plant
from vitattack.checks.readouts import fit
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.head import HeadTap, find_head
from vitattack.models.victim import Victim, as_victim
from vitattack.threats.lp import LpBall

LINF = LpBall("linf", 8 / 255)
BALLS = [LINF, LpBall("l2", 0.5)]


def small(n: int) -> Tensor:
    return toy_pictures(n)[..., ::4, ::4].contiguous()


def linear(classes: int = 10) -> Victim:
    torch.manual_seed(0)
    return as_victim(nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, classes)), small(1), "linear")


class Quantised(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.model((x * 16).round() / 16)
        return out


class Sharp(nn.Module):
    """The model behind a softmax of large logits: no loss of its own has a gradient far from the boundary."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = (1e3 * self.model(x)).softmax(1)
        return out


def test_the_widest_margin_is_that_of_the_convex_hull() -> None:
    """A square's corner region: the nearest point of its hull to (3, 2) is the corner (1, 1)."""
    inner = torch.tensor([[[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]])
    readout = fit(inner, torch.tensor([[3.0, 2.0]]))
    assert torch.allclose(readout.weight, torch.tensor([[2.0, 1.0]]) / 5**0.5, atol=1e-5)
    assert readout.lead.item() == pytest.approx(5**0.5, rel=1e-5)
    rows = torch.zeros(4, dtype=torch.long)
    assert readout.scores(inner[0], rows).amax().item() == pytest.approx(-(5**0.5), rel=1e-5)


def test_a_point_inside_the_others_is_not_separated() -> None:
    inner = torch.tensor([[[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]])
    assert fit(inner, torch.zeros(1, 2)).lead.item() <= 1e-6


@pytest.mark.parametrize("ball", BALLS, ids=str)
@pytest.mark.parametrize("corner", [False, True])
@pytest.mark.parametrize("level", [0.0, 0.5, 1.0])
def test_planted_points_lie_on_the_edge_even_at_the_box(ball: LpBall, corner: bool, level: float) -> None:
    x = torch.full((4, 3, 8, 8), level)
    edge = edge_points(ball, x, SampleRng(0, tuple(range(4))), corner=corner)
    assert torch.allclose(ball.size(x, edge).float(), torch.tensor(ball.eps), rtol=1e-5)
    assert bool(ball.allows(x, edge).all())


@pytest.mark.parametrize("ball", BALLS, ids=str)
@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_every_example_of_a_linear_model_is_found(ball: LpBall, classes: int) -> None:
    victim, x = linear(classes), small(6)
    model, edge, facts = plant(victim, x, ball, seed=0, inner=24, corner=False, batch_size=4)
    assert facts.at_head and facts.width == 192 and bool(facts.planted.all())
    assert model(edge).argmax(1).tolist() == [1] * 6 and model(x).argmax(1).tolist() == [0] * 6
    found = certify(victim, x, ball, ["pgd(steps=100)"], inner=24)
    assert (found.tested, found.found[0].found, found.says_nothing) == (6, 6, "")
    assert "6 of 6 planted examples found, at least 60.6 %" in found.line("pgd(steps=100)")


def test_readouts_stay_with_their_images_in_any_order() -> None:
    victim, x = tiny_vit(), toy_pictures(6)
    model, edge, facts = plant(victim, x, LINF, seed=0, inner=24, corner=False, batch_size=8)
    assert bool(facts.planted.all())
    order = torch.tensor([4, 1, 1, 5])
    assert torch.allclose(model(edge[order]), model(edge)[order], atol=1e-5)


def test_nothing_is_planted_in_a_constant_model() -> None:
    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.zeros(len(x), 10) + 0 * x.sum()

    found = certify(as_victim(Constant(), toy_pictures(2), "constant"), toy_pictures(2), LINF, ["fgsm"])
    assert (found.planted, found.at_head) == (0, False)
    assert found.line("fgsm") == "certificate: none, since nothing could be planted for any of 2 images"


def test_quantisation_hides_planted_examples_from_plain_gradients_alone() -> None:
    """Plain gradients find none of what is known to exist; `auto`, which goes around the quantiser, finds most."""
    victim, x = as_victim(Quantised(tiny_vit().model), toy_pictures(8), "quantised"), toy_pictures(8)
    found = certify(victim, x, LINF, ["pgd(steps=10)", "auto(steps=5, k=1, long=5)"], inner=48)
    by = {each.attack: each.found for each in found.found}
    assert found.tested >= 6 and not found.says_nothing
    assert by["pgd(steps=10)"] == 0 and by["auto(steps=5, k=1, long=5)"] >= found.tested - 1
    assert "at least 0.0 %" in found.line("pgd(steps=10)")


def test_what_follows_the_head_stays() -> None:
    """The readout takes the place of the linear call alone, so that a saturated output is tested, too."""
    victim = as_victim(Sharp(linear().model), small(4), "sharp")
    model, edge, facts = plant(victim, small(4), LINF, seed=0, inner=24, corner=False, batch_size=4)
    assert facts.at_head and bool(facts.planted.all())
    assert torch.allclose(model(edge).sum(1), torch.ones(4))


class Twofold(nn.Module):
    """Two heads whose scores are added: neither sees everything."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(192, 10), nn.Linear(192, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.one(x.flatten(1)) + self.two(x.flatten(1).cos())
        return out


def test_a_head_that_sees_a_part_is_no_head() -> None:
    torch.manual_seed(0)
    victim, x = as_victim(Twofold(), small(4), "twofold"), small(4)
    assert find_head(victim, x) is None
    found = certify(victim, x, LINF, ["pgd(steps=5)"])
    assert not found.at_head and found.width == 10 and found.inner == 9 and found.tested <= 4


def test_the_head_of_a_vision_transformer_makes_its_logits() -> None:
    victim, x = tiny_vit(), toy_pictures(3)
    head = find_head(victim, x)
    assert head is not None
    with torch.no_grad(), HeadTap() as tap:
        logits = victim(x)
    assert torch.equal(tap.scores[head.call], logits) and tap.features[head.call].shape == (3, head.width)


def test_repeated_images_count_once_and_no_image_or_budget_is_refused() -> None:
    x = small(3)
    assert certify(linear(), torch.cat([x, x[:2]]), LINF, ["fgsm"], inner=8).images == 3
    with pytest.raises(UsageError, match="at least one image"):
        certify(linear(), x[:0], LINF, ["fgsm"])
    with pytest.raises(UsageError, match="above zero"):
        certify(linear(), x, LpBall("linf", 0.0), ["fgsm"])
