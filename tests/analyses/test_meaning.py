"""Perturbations as images before other models, and images made of noise: against models whose answers are known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import tiny_vit
from tests.models.blocks.families import cnn, plain_vit, windowed_swin, xcit
from vitattack.analyses.analyze import analyze
from vitattack.analyses.meaning.features import towards
from vitattack.analyses.meaning.semantic import as_image
from vitattack.core.errors import UsageError
from vitattack.models.victim import Victim, as_victim
from vitattack.threats.lp import LpBall


class Templates(nn.Module):
    """Logits are the correlations with a pattern for each class: the gradient of each is its pattern."""

    def __init__(self, sharpness: float = 1.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        patterns = torch.randn(10, 3, 8, 8, generator=generator).sign()
        self.patterns = nn.Parameter(sharpness * patterns.flatten(1) / 192)

    def forward(self, x: Tensor) -> Tensor:
        return (x - 0.5).flatten(1) @ self.patterns.T


def grey(n: int = 10) -> tuple[Tensor, Tensor]:
    return torch.full((n, 3, 8, 8), 128 / 255), torch.arange(n)


def test_a_perturbation_fills_the_image_in_steps_of_8_bits() -> None:
    eps = 4 / 255
    delta = torch.tensor([-eps, 0.0, eps, eps / 2])
    assert torch.allclose(as_image(delta, eps) * 255, torch.tensor([0.0, 128.0, 255.0, 191.0]))
    assert torch.allclose(as_image(-delta, eps) * 255, torch.tensor([255.0, 128.0, 0.0, 64.0]))


def test_negative_perturbations_of_patterns_are_the_evaded_class_and_positive_ones_never() -> None:
    models = [Templates(), Templates(2.0)]
    found = analyze("semantic", models, data=grey(), steps=3, pictures=2, threads=1)
    by_sign = {row["sign"]: row["accuracy"] for row in found.rows if row["model"] == "Templates"}
    assert by_sign == {"-delta": 1.0, "+delta": 0.0}
    assert found.rows[0]["top"] == 1 and found.rows[0]["chance"] == 0.1
    assert found.tables()[1].rows[0] == ("XCiT-S12", "43.9", "49.5", "40.2")


def test_judges_are_other_models_of_the_same_size() -> None:
    data = grey(2)
    with pytest.raises(UsageError, match="no other model to judge"):
        analyze("semantic", Templates(), data=data, steps=1, threads=1)
    with pytest.raises(UsageError, match="semantic is of linf balls"):
        analyze("semantic", [Templates(), Templates()], data=data, threat="l2:1", steps=1, threads=1)
    with pytest.raises(UsageError, match="top=10 holds all of 10 classes"):
        analyze("semantic", [Templates(), Templates()], data=data, top=10, steps=1, threads=1)


def test_images_of_noise_end_in_their_class_and_within_the_budget() -> None:
    victim = as_victim(Templates(100.0), torch.zeros(1, 3, 8, 8))
    start = torch.rand(10, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    ball = LpBall("l2", 2.0)
    made = towards(victim, ball, start, torch.arange(10), 20)
    assert victim(made).argmax(1).tolist() == list(range(10))
    assert float(ball.size(start, made).max()) <= 2.0 + 1e-5 and made.min() >= 0 and made.max() <= 1
    assert torch.equal(towards(victim, LpBall("l2", 0.0), start, torch.arange(10), 3), start)


def test_other_models_see_features_that_are_shared() -> None:
    found = analyze("features", [Templates(100.0), Templates(50.0)], data=grey(2), steps=10, seeds=2, threads=1)
    numbers = {row["measure"]: row["value"] for row in found.rows if row["model"] == "Templates"}
    assert numbers["seen by Templates #2"] == 1.0 and float(numbers["own confidence"] or 0) > 0.9
    with pytest.raises(UsageError, match="class 10 does not exist"):
        analyze("features", tiny_vit(), data=grey(2), classes=(10,), threads=1)


@pytest.mark.parametrize("victim", [windowed_swin(), xcit(), cnn()], ids=lambda victim: victim.name)
def test_other_families(victim: Victim) -> None:
    data = (torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1]))
    judged = analyze("semantic", [victim, plain_vit()], data=data, steps=1, pictures=1, threads=1)
    assert len(judged.rows) == 4 and all(0 <= float(row["accuracy"] or 0) <= 1 for row in judged.rows)
    assert len(analyze("features", victim, data=data, steps=1, seeds=1, threads=1).rows) == 2
    kinds = analyze("corruptions", victim, data=data, kinds=("fog",), severities=(5,), threads=1)
    assert kinds.rows[-1]["corruption"] == "fog"
