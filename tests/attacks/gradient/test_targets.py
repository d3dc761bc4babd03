"""Targets are the classes they say they are, each tried once, on the samples still standing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from vitattack.attacks import attack_text
from vitattack.attacks.gradient.targets import Targets
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.passes import counting_passes
from vitattack.models.victim import Victim
from vitattack.threats.lp import LpBall

BALL = LpBall("linf", 0.1)
X = torch.rand(6, 3, 2, 2, generator=torch.Generator().manual_seed(0)) * 0.5 + 0.25


class Ladder(nn.Module):
    """Class c scores -gap c + its own pixel: class 0 leads, class 1 is the runner-up."""

    def __init__(self, classes: int, gap: float) -> None:
        super().__init__()
        self.classes, self.gap = classes, gap

    def forward(self, x: Tensor) -> Tensor:
        pixels = x.flatten(1)
        return torch.stack([pixels[:, c % 12] - self.gap * c for c in range(self.classes)], 1)


def victim(classes: int, gap: float) -> Victim:
    return Victim(Ladder(classes, gap), name="ladder", num_classes=classes, input_size=2)


def run(text: str, model: Victim, n: int = 6) -> dict[str, Tensor]:
    y = torch.zeros(n, dtype=torch.long)
    rng = SampleRng(0, tuple(range(n)))
    attack = attack_text.build(text, BALL).prepare(model, lambda: (X[:0], y[:0]), rng=rng)
    with counting_passes(model) as passes:
        crafted = attack(model, X[:n], y, rng=rng)
    assert passes.forwards == int(crafted.evidence["forwards"].sum())
    assert passes.backwards == int(crafted.evidence["backwards"].sum())
    fooled = model(crafted.x_adv).argmax(1)
    assert torch.equal(fooled != y, crafted.evidence["fooled"])
    return {**crafted.evidence, "prediction": fooled}


@pytest.mark.parametrize("classes", [2, 3, 5, 100])
@pytest.mark.parametrize("loss", ["margin", "dlr", "ce"])
def test_a_robust_sample_pays_for_every_target_that_exists(classes: int, loss: str) -> None:
    evidence = run(f"targets(pgd(steps=3), k=9, loss={loss})", victim(classes, 5.0))
    targets = min(9, classes - 1)
    assert evidence["forwards"].tolist() == [1 + 4 * targets] * 6
    assert evidence["backwards"].tolist() == [3 * targets] * 6


def test_small_models_are_attacked_and_say_so() -> None:
    attack = attack_text.build("apgd_t(steps=3)", BALL).prepare(
        victim(3, 5.0), lambda: (X[:0], X[:0]), rng=SampleRng(0, (0,))
    )
    told = " ".join(attack.doubts())
    assert "9 targets were asked for, a model of 3 classes has 2" in told
    assert "needs 4 classes" in told
    assert (
        attack_text.build("apgd_t", BALL)
        .prepare(victim(10, 5.0), lambda: (X[:0], X[:0]), rng=SampleRng(0, (0,)))
        .doubts()
        == ()
    )


def test_each_choice_reaches_its_class() -> None:
    """Within reach are all classes; an attack that reaches a class has aimed at it."""
    model = victim(5, 0.001)
    model.model.forward = lambda x: torch.stack(  # type: ignore[union-attr, method-assign]
        [
            x.flatten(1)[:, 0],
            *(x.flatten(1)[:, 0] - 0.15 + (x.flatten(1)[:, c] - X.mean()) * 9 - c * 1e-3 for c in range(1, 5)),
        ],
        1,
    )
    x = torch.full((6, 3, 2, 2), float(X.mean()))
    y = torch.zeros(6, dtype=torch.long)
    for which, reached in (("second", 1), ("top", 1), ("least", 4)):
        attack = attack_text.build(f"targets(pgd(start=clean), which={which})", BALL)
        found = model(attack(model, x, y, rng=SampleRng(0, tuple(range(6)))).x_adv).argmax(1)
        assert found.tolist() == [reached] * 6
    found = model(
        attack_text.build("targets(pgd(start=clean), which=random, k=1)", BALL)(
            model, x, y, rng=SampleRng(0, tuple(range(6)))
        ).x_adv
    )
    assert len(set(found.argmax(1).tolist())) > 1


def test_the_second_target_sees_survivors_only() -> None:
    """Half of the samples fall to the first target: they pay for one, the others for two."""
    model = victim(3, 0.0)
    far = (torch.arange(6) % 2).bool()

    class Half(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            pixels = x.flatten(1)
            lead = torch.where(pixels[:, 11] > 0.5, 5.0, 0.05)
            return torch.stack([pixels[:, 0] + lead, pixels[:, 1], pixels[:, 2] - 0.01], 1)

    x = torch.full((6, 3, 2, 2), 0.5)
    x[:, 2, 1, 1] = torch.where(far, 0.8, 0.2)
    model.model = Half()
    y = torch.zeros(6, dtype=torch.long)
    crafted = attack_text.build("targets(pgd(steps=4), k=2)", BALL)(model, x, y, rng=SampleRng(0, tuple(range(6))))
    assert crafted.evidence["fooled"].tolist() == (~far).tolist()
    assert crafted.evidence["target"].tolist() == [-1 if f else 0 for f in far.tolist()]
    assert crafted.evidence["forwards"][far].tolist() == [1 + 2 * 5] * 3


def test_what_takes_no_loss_cannot_be_aimed() -> None:
    with pytest.raises(UsageError, match="noise has no loss"):
        attack_text.build("targets(random)", BALL)
    with pytest.raises(UsageError, match="has no target"):
        attack_text.build("targets(pgd, k=0)", BALL)


@pytest.mark.parametrize("version", ["standard", "plus", "rand"])
@pytest.mark.parametrize("classes", [2, 3])
def test_autoattack_runs_on_few_classes(version: str, classes: int) -> None:
    attack = attack_text.build(f"autoattack(version={version}, steps=2, queries=3)", BALL)
    x, y = torch.full((2, 3, 2, 2), 0.5), torch.zeros(2, dtype=torch.long)
    model = victim(classes, 5.0)
    crafted = attack.prepare(model, lambda: (x, y), rng=SampleRng(0, (0,)))(model, x, y, rng=SampleRng(0, (0, 1)))
    assert not crafted.evidence["fooled"].any()
    stages = {"standard": 4, "plus": 6, "rand": 2}
    assert len(attack.attacks) == stages[version]  # type: ignore[attr-defined]


def at_once(text: str, size: int) -> Targets:
    attack = attack_text.build(text, BALL)
    assert isinstance(attack, Targets)
    return replace(attack, at_once=size)


@pytest.mark.parametrize("size", [1, 4, 64])
def test_classes_aimed_at_at_once_cost_what_they_cost_in_turn_where_nothing_falls(size: int) -> None:
    model, y = victim(5, 5.0), torch.zeros(6, dtype=torch.long)
    rng = SampleRng(0, tuple(range(6)))
    with counting_passes(model) as passes:
        found = at_once("targets(pgd(steps=3), k=9)", size)(model, X, y, rng=rng)
    in_turn = attack_text.build("targets(pgd(steps=3), k=9)", BALL)(model, X, y, rng=rng).evidence
    for name in ("forwards", "backwards", "fooled", "first_fooled", "zero_grad"):
        assert torch.equal(found.evidence[name], in_turn[name]), name
    assert passes.forwards == int(found.evidence["forwards"].sum())
    assert bool(((found.x_adv - X).abs() <= 0.1 + 1e-6).all())


@pytest.mark.parametrize("size", [1, 4, 64])
def test_an_image_falls_to_whichever_class_is_within_reach(size: int) -> None:
    """Class 3 alone is within reach, and of half of the images."""

    class OneWay(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            pixels = x.flatten(1)
            lead = torch.where(pixels[:, 11] > 0.5, 5.0, 0.05)
            others = [pixels[:, 1] * 0 - c for c in (1, 2)]
            return torch.stack([0.5 + lead, *others, pixels[:, 3], others[0] - 3], 1)

    model = Victim(OneWay(), name="one way", num_classes=5, input_size=2)
    x, y = torch.full((6, 3, 2, 2), 0.5), torch.zeros(6, dtype=torch.long)
    far = (torch.arange(6) % 2).bool()
    x[:, 2, 1, 1] = torch.where(far, 0.8, 0.2)
    found = at_once("targets(pgd(steps=4), k=9)", size)(model, x, y, rng=SampleRng(0, tuple(range(6))))
    assert found.evidence["fooled"].tolist() == (~far).tolist()
    assert model(found.x_adv).argmax(1).tolist() == [0 if f else 3 for f in far.tolist()]
    assert found.evidence["forwards"][far].tolist() == [1 + 4 * 5] * 3


def test_copies_of_an_image_draw_noise_of_their_own_whatever_stands_beside_it() -> None:
    like = torch.zeros(3, 2)
    together = SampleRng(0, (4, 7)).copies(3).uniform(torch.zeros(6, 2))
    assert torch.equal(together[3:], SampleRng(0, (7,)).copies(3).uniform(like)) and len(together.unique()) == 12
