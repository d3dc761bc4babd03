"""Means over corruptions, and where their images come from."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.conftest import tiny_vit
from tests.data.formats.test_arrays import cifar_c
from tests.data.making import encoded, put, val
from vitattack.analyses.analyze import analyze
from vitattack.analyses.parts import FOLDER
from vitattack.analyses.shifts.means import ALEXNET, SEVERITIES, corruption_error, mean_accuracy
from vitattack.core.errors import UsageError
from vitattack.data.labels.other_sets import CORRUPTIONS, EXTRA_CORRUPTIONS


def test_alexnet_has_an_mce_of_100() -> None:
    n = 100_000
    right = {
        (kind, severity): np.arange(n) >= round(n * ALEXNET[kind])
        for kind, severity in itertools.product(CORRUPTIONS, SEVERITIES)
    }
    found = corruption_error(right)
    assert found is not None and found.value == pytest.approx(1.0, abs=1e-5)
    assert corruption_error({key: right[key] for key in right if key != ("fog", 3)}) is None


def test_means_over_75_and_95_sets_are_plain_means() -> None:
    rng = np.random.default_rng(0)
    every = (*CORRUPTIONS, *EXTRA_CORRUPTIONS)
    right = {key: rng.random(40) < 0.6 for key in itertools.product(every, SEVERITIES)}
    found = mean_accuracy(right, every)
    assert found is not None and len(right) == 95 and found.value == pytest.approx(np.mean([*right.values()]))
    one = mean_accuracy(right, ["fog"], [2])
    assert one is not None and one.value == right[("fog", 2)].mean()
    same = dict.fromkeys(right, right["fog", 2])  # one image under 95 equal corruptions tells as much as under one
    repeated = mean_accuracy(same, every)
    assert repeated is not None and one.low is not None and repeated.low == pytest.approx(one.low)
    assert mean_accuracy({("fog", 1): right[("fog", 1)]}, ["fog"]) is None


def test_nothing_is_lost_without_a_corruption(toy_images: tuple[Tensor, Tensor]) -> None:
    x, y = toy_images
    grey = x[:5] * 0 + 0.4
    found = analyze("corruptions", tiny_vit(), data=(grey, y[:5]), kinds=("contrast",), severities=(1,), threads=1)
    by_name = {row["corruption"]: row for row in found.rows}
    assert by_name["clean"]["value"] == by_name["contrast"]["value"]
    assert not {"acc-75", "acc-95", "mCE"} & {*by_name}
    assert any("not the published images" in remark for remark in found.remarks)


def test_published_images_are_read_where_there_are_some(tmp_path: Path) -> None:
    cifar_c(tmp_path, 10)
    wanted = {"data_dir": tmp_path, "limit": 3, "threads": 1}
    found = analyze("corruptions", "tiny-vit", data="cifar10-c", severities=(2, 4), **wanted)
    assert [(row["corruption"], row["severity"]) for row in found.rows[-2:]] == [("fog", 2), ("fog", 4)]
    assert found.data == "cifar10-c/fog/2[:3]" and found.n == 3
    assert any("not measured: gaussian_noise" in remark for remark in found.remarks)
    with pytest.raises(UsageError, match=r"takes the whole set: write --data cifar10-c"):
        analyze("corruptions", "tiny-vit", data="cifar10-c/fog", **wanted)
    with pytest.raises(UsageError, match=r"has no snow.npy"):
        analyze("corruptions", "tiny-vit", data="cifar10-c", kinds=("snow",), **wanted)


def test_wrong_kinds_and_severities() -> None:
    for words, message in (
        ({"severities": (0,)}, "severities are 1 to 5"),
        ({"kinds": ("fog", "fog")}, "named twice"),
        ({"kinds": ("spatter",)}, "spatter cannot be made here"),
    ):
        with pytest.raises(UsageError, match=message):
            analyze("corruptions", "tiny-vit", data="cifar10-demo", limit=1, **words)


class RightUpTo(nn.Module):
    """A 1000-way model that is right about one class as long as the red of an image is below a limit."""

    def __init__(self, label: int, limit: int) -> None:
        super().__init__()
        self.label, self.limit = label, limit

    def forward(self, x: Tensor) -> Tensor:
        logits = torch.zeros(len(x), 1000)
        logits[:, self.label] = torch.where(x[:, 0, 0, 0] * 255 < self.limit + 0.5, 1.0, -1.0)
        return logits


def test_imagenet_c_has_its_means_beside_the_published(tmp_path: Path) -> None:
    for kind, severity in itertools.product((*CORRUPTIONS, *EXTRA_CORRUPTIONS), SEVERITIES):
        folder = tmp_path / "imagenet-c" / kind / str(severity) / "n01751748"
        put(folder / val(1), encoded((severity, 0, 0)))
    settings: dict[str, Any] = {
        "data": "imagenet-c[:1]",
        "data_dir": tmp_path,
        "transform": "resize8x8",
        "threads": 1,
    }
    model = RightUpTo(65, 2)
    found = analyze("corruptions", model, **settings)
    by_name = {row["corruption"]: row["value"] for row in found.rows if row["severity"] is None}
    assert by_name["acc-75"] == by_name["acc-95"] == pytest.approx(0.4) and "clean" not in by_name
    assert by_name["mCE"] == pytest.approx(np.mean([0.6 / error for error in ALEXNET.values()]))
    titles = [table.title for table in found.tables()]
    assert titles[-2:] == ["Published acc-95", "Published mCE"]
    assert ("tora2023/tora_vit_b_16-0.1", "31.7") in {row[:2] for row in found.tables()[-1].rows}
    few = analyze("corruptions", model, kinds=("fog",), **settings)
    assert not {"acc-75", "acc-95", "mCE"} & {row["corruption"] for row in few.rows}


def test_more_kinds_only_add_to_what_is_stored(toy_images: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    settings: dict[str, Any] = {"data": toy_images, "limit": 3, "severities": (1,), "threads": 1, "out": tmp_path}
    analyze("corruptions", tiny_vit(), kinds=("contrast",), **settings)
    before = {path: path.read_bytes() for path in (tmp_path / FOLDER).iterdir()}
    analyze("corruptions", tiny_vit(), kinds=("contrast", "brightness"), **settings)
    after = {path: path.read_bytes() for path in (tmp_path / FOLDER).iterdir()}
    assert len(before) == 2 and len(after) == 3 and before.items() <= after.items()
