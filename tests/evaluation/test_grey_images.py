"""Models that take one channel, and folders of grey images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitattack
from vitattack.core.errors import UsageError
from vitattack.models.zoo.file_options import FileOptions
from vitattack.models.zoo.load import load_model

SOURCE = """
from torch import nn

class Grey(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(28 * 28, 3)

    def forward(self, x):
        assert x.shape[1] == 1
        return self.head(x.flatten(1))
"""
OPTIONS = FileOptions(normalize="0.5/0.25")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("grey.py").write_text(SOURCE)
    pixels = np.random.default_rng(0).integers(0, 256, (6, 28, 28), dtype=np.uint8)
    for number, one in enumerate(pixels):
        path = Path(f"images/class{number % 3}")
        path.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(one)
        image = image if number < 3 else image.convert("RGB" if number < 5 else "LA")  # grey, saved with more channels
        image.save(path / f"{number}.png")
    return tmp_path


def test_grey_images_have_one_channel_for_a_model_of_one(folder: Path) -> None:
    victim = load_model("grey.py:Grey", torch.device("cpu"), OPTIONS).victim
    assert (victim.channels, victim.size, victim.grey(2).shape) == (1, (28, 28), (2, 1, 28, 28))
    result = vitattack.evaluate("grey.py:Grey", "pgd(steps=2)", data="folder:images", options=OPTIONS, threads=1)
    stored = [np.asarray(Image.open(path).convert("L")) for path in sorted(Path("images").rglob("*.png"))]
    x = torch.from_numpy(np.stack(stored))[:, None].float() / 255
    assert [record.clean for record in result.results[0].records] == victim(x).argmax(1).tolist()


def test_colours_are_refused_and_grey_images_fill_three_channels(folder: Path) -> None:
    from vitattack.data import load_data

    assert load_data("folder:images").read([0])[0].shape == (1, 3, 28, 28)
    Image.new("RGB", (28, 28), (9, 8, 7)).save("images/class1/red.png")
    with pytest.raises(UsageError, match=r"red.png has colours, and the model takes one channel") as error:
        vitattack.evaluate("grey.py:Grey", "pgd", data="folder:images", options=OPTIONS, threads=1)
    assert "\n" not in str(error.value)


def test_a_normalisation_of_three_channels_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="takes images with one channel, and --normalize is for three: write MEAN/STD"):
        load_model("grey.py:Grey", torch.device("cpu"), FileOptions(normalize="imagenet"))


def test_workers_share_code_of_the_user(folder: Path) -> None:
    shared = {"data": "folder:images", "options": OPTIONS, "threads": 1, "batch_size": 2, "attacks": "pgd(steps=2)"}
    alone, several = (vitattack.evaluate("grey.py:Grey", **shared, jobs=jobs) for jobs in (1, 2))
    assert list(alone.results[0].records) == list(several.results[0].records)
    assert several.json()["provenance"]["workers"]["processes"] == 2
