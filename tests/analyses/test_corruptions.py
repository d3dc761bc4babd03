"""Means over corruptions, and where their images come from."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from tests.conftest import tiny_vit
from tests.data.formats.test_arrays import cifar_c
from vitattack.analyses.analyze import analyze
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
