"""Models whose images are not square."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vitattack
from vitattack.core.errors import UsageError
from vitattack.models.digest import fingerprint
from vitattack.models.victim import Victim, as_victim
from vitattack.models.zoo.file_options import FileOptions, parse_size
from vitattack.models.zoo.load import load_model
from vitattack.threats.base import parse_threat
from vitattack.threats.spatial import Spatial, transform

SOURCE = """
import torch
from torch import nn

class Oblong(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 8, 8)
        self.positions = nn.Parameter(0.1 * torch.randn(1, 8, 16))
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        return self.head((x + self.attention(x, x, x, need_weights=False)[0]).mean(1))
"""


class Oblong(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(3 * 16 * 32, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x.flatten(1))
        return logits


def test_every_transform_of_oblong_images_is_tried_in_its_own_range() -> None:
    threat = parse_threat("spatial:25%,90deg")
    assert isinstance(threat, Spatial)
    x = torch.rand(6, 3, 16, 32)
    assert threat.reach(x) == (8, 4), "across, down"
    moved = transform(x, torch.full((6,), 8.0), torch.full((6,), -4.0), torch.zeros(6))
    assert torch.allclose(moved[..., 4:, :24], x[..., :12, 8:], atol=1e-4) and moved[..., :4, :].abs().max() == 0
    turned = transform(x, torch.zeros(6), torch.zeros(6), torch.full((6,), 90.0))
    assert torch.allclose(turned[..., 8:24], torch.rot90(x[..., 8:24], 1, (2, 3)), atol=1e-4)
    model = Oblong()
    y = model(x).argmax(1)
    result = vitattack.evaluate(model, "spatial(shifts=3, angles=3)", threat=threat, data=(x, y), threads=1)
    tried = [
        model(transform(x, *(torch.full((6,), v) for v in at))).argmax(1).eq(y)
        for at in product((-8.0, 0.0, 8.0), (-4.0, 0.0, 4.0), (-90.0, 0.0, 90.0))
    ]
    survivors = torch.stack(tried).all(0)
    assert [record.status == "robust" for record in result.results[0].records] == survivors.tolist()


def test_differences_of_oblong_images_are_measured() -> None:
    model, x = Oblong(), torch.rand(4, 3, 16, 32)
    result = vitattack.evaluate(
        model, "fgsm", threat="linf:8/255", data=(x, model(x).argmax(1)), perceptual=True, threads=1
    )
    evidence = [record.evidence for record in result.results[0].records]
    assert all(float(one["linf"]) <= 8 / 255 + 1e-6 and 0.5 < float(one["ssim"]) < 1 for one in evidence)


@pytest.mark.parametrize("attack", ["pgd(steps=2)", "square(queries=20)", "apgd(steps=5)", "aas(pgd(steps=2))"])
def test_oblong_images_are_attacked_from_the_command_line_names(
    attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("oblong.py").write_text(SOURCE)
    x = torch.rand(8, 3, 16, 32)
    options = FileOptions(normalize="half", input_size="16x32")
    victim = load_model("oblong.py:Oblong", torch.device("cpu"), options).victim
    assert victim.size == (16, 32) and victim.grey(2).shape == (2, 3, 16, 32)
    y = victim(x).argmax(1)
    calibration = (torch.rand(8, 3, 16, 32), torch.zeros(8, dtype=torch.long)) if "aas" in attack else None
    result = vitattack.evaluate(
        "oblong.py:Oblong", attack, data=(x, y), options=options, calibration=calibration, threads=1
    )
    assert result.results[0].clean.correct == 8


def test_a_module_from_python_may_take_oblong_images() -> None:
    model, x = Oblong(), torch.rand(6, 3, 16, 32)
    result = vitattack.evaluate(model, "pgd(steps=2)", data=(x, model(x).argmax(1)), threads=1)
    assert result.results[0].clean.correct == 6


def test_another_size_is_refused_with_both_sides_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("oblong.py").write_text(SOURCE)
    np.savez("x.npz", x=np.zeros((4, 32, 16, 3), np.uint8), y=np.zeros(4, np.int64))
    options = FileOptions(normalize="none", input_size="16x32")
    with pytest.raises(UsageError, match="images are 32 x 16 px, 'oblong.py:Oblong' takes 16 x 32"):
        vitattack.evaluate("oblong.py:Oblong", "pgd", data="npz:x.npz", options=options)


def test_square_models_keep_their_identity() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(48, 2))
    square = Victim(module, name="m", num_classes=2, input_size=4)
    same = as_victim(module, torch.zeros(1, 3, 4, 4), "m")
    assert "input_height" not in vars(square) and fingerprint(square) == fingerprint(same)


@pytest.mark.parametrize("text", ["", "0", "12x", "x12", "12x0", "9000", "1e3", "-4", "4 x 4"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="is not understood: write 224, or HEIGHTxWIDTH"):
        parse_size(text)
