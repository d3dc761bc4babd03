"""ImageNet-A, ImageNet-R and cue conflict: what is decided, against hand values."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.data.making import encoded, put
from vitattack.analyses.analyze import analyze
from vitattack.analyses.shifts.shape_bias import ACCURACY, BIAS, TEXTURE, Decisions
from vitattack.core.errors import UsageError
from vitattack.data.labels.imagenet import CATEGORIES, restricted_classes, synsets

SIDE = 8
OUTSIDE = next(number for number in range(1000) if number not in restricted_classes("a"))


@pytest.fixture(autouse=True)
def uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitattack.data.openers.check_count", lambda found, wanted, where: None)


class ByRed(nn.Module):
    """A 1000-way model that knows a logit of every class for each red value."""

    def __init__(self, answers: dict[int, dict[int, float]]) -> None:
        super().__init__()
        self.answers = answers

    def forward(self, x: Tensor) -> Tensor:
        logits = torch.zeros(len(x), 1000)
        for at, red in enumerate((x[:, 0, 0, 0] * 255).round().int().tolist()):
            for label, value in self.answers[red].items():
                logits[at, label] = value
        return logits


def test_decisions_among_200_classes_and_among_all(tmp_path: Path) -> None:
    right, wrong = restricted_classes("a")[3], restricted_classes("a")[5]
    for red in (0, 1, 2):
        put(tmp_path / "imagenet-a" / synsets()[right] / f"{red}.png", encoded((red, 0, 0), (SIDE, SIDE)))
    model = ByRed({0: {right: 5.0}, 1: {right: 3.0, OUTSIDE: 5.0}, 2: {wrong: 5.0, right: 3.0}})
    found = analyze("imagenet-a", model, data_dir=tmp_path, threads=1)
    assert [(row["decided"], row["correct"], row["n"]) for row in found.rows] == [
        ("restricted", 2, 3),
        ("unrestricted", 1, 3),
    ]
    published = {row[0]: row[1] for row in found.tables()[1].rows}
    assert published["ViT-B/16, ImageNet-21k"] == "26.6" and published["TORA-ViT-B/16, 0.5"] == "39.2"


def test_other_data_and_models_of_other_classes_are_refused(tmp_path: Path) -> None:
    put(tmp_path / "imagenet-a" / synsets()[restricted_classes("a")[0]] / "a.png", encoded((0, 0, 0), (32, 32)))
    with pytest.raises(UsageError, match="asked of imagenet-a alone, not of 'cifar10-calib'"):
        analyze("imagenet-a", "tiny-vit", data="cifar10-calib")
    with pytest.raises(UsageError, match="10 classes"):
        analyze("imagenet-a", "tiny-vit", data_dir=tmp_path, threads=1)
    with pytest.raises(UsageError, match="no --data-dir is given"):
        analyze("imagenet-r", "tiny-vit", threads=1)
    # a transform of its image files is no fault
    with pytest.raises(UsageError, match="no --data-dir is given"):
        analyze("imagenet-a", "tiny-vit", transform="resize32x32", threads=1)


def test_shape_bias_and_shape_accuracy_are_two_things() -> None:
    numbers = Decisions([0, 0, 0, 1, 2], [1, 1, 1, 0, 2], [0, 1, 5, 1, 2]).numbers()
    assert (numbers[ACCURACY].correct, numbers[ACCURACY].n) == (3, 5)
    assert (numbers[TEXTURE].correct, numbers[TEXTURE].n) == (1, 4)  # the last image has one category
    assert (numbers[BIAS].correct, numbers[BIAS].n) == (2, 3)  # the third was decided for neither


def test_categories_are_decided_by_mean_probability(tmp_path: Path) -> None:
    for red, name in ((0, "dog/dog1-elephant2.png"), (1, "elephant/elephant1-dog2.png"), (2, "cat/cat1-cat2.png")):
        put(tmp_path / "cue-conflict" / name, encoded((red, 0, 0), (SIDE, SIDE)))
    dogs, elephant = CATEGORIES["dog"], CATEGORIES["elephant"][0]
    many = dict.fromkeys(dogs, 4.0)  # together far above one elephant, on average below
    model = ByRed({0: {**many, elephant: 5.0}, 1: {elephant: 5.0}, 2: {CATEGORIES["cat"][0]: 9.0}})
    found = analyze("shape-bias", model, data_dir=tmp_path, threads=1)
    by_measure = {row["measure"]: row["correct"] for row in found.rows if row["shape"] == "all"}
    assert by_measure == {ACCURACY: 2, TEXTURE: 1, BIAS: 1}
    found.save_plot(tmp_path / "figure.png")
