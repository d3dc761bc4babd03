"""A clean accuracy at the level of chance is doubted, and what would help is named."""

from __future__ import annotations

import torch

from vitattack.evaluation.evaluate import evaluate
from vitattack.models.victim import Victim
from vitattack.models.zoo.load import load_model


def test_a_wrong_normalisation_is_named() -> None:
    right = load_model("tiny-vit", torch.device("cpu")).victim
    wrong = Victim(right.model, name="mine", num_classes=10, input_size=32, mean=(60.0,) * 3, std=(1.0,) * 3)
    settings = {"data": "cifar10-demo", "limit": 32, "threads": 1}
    doubts = evaluate(wrong, "fgsm", **settings).doubts  # type: ignore[arg-type]
    assert any("no better than guessing among 10 classes: normalisation 'cifar10'" in doubt for doubt in doubts)
    assert not any("guessing" in doubt for doubt in evaluate(right, "fgsm", **settings).doubts)  # type: ignore[arg-type]
