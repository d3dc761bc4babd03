"""RobustBench's own reader and ours, on 5,000 small images under its names."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as tv
from PIL import Image

from vitattack.data import load_data
from vitattack.data.labels.imagenet import official_list, robustbench_ids, synsets


def their_reader(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import the one file of RobustBench that reads images; the rest needs packages that this test does not."""
    found = importlib.util.find_spec("robustbench")
    if found is None or not found.submodule_search_locations:
        pytest.skip("robustbench is not installed")
    home = Path(next(iter(found.submodule_search_locations)))
    if not (home / "helper_files" / "imagenet_test_image_ids.txt").is_file():
        pytest.skip("this robustbench came without its list: install the wheel 1.1.1 with --no-deps")
    package = types.ModuleType("robustbench")
    package.__path__ = [str(home)]
    monkeypatch.setitem(sys.modules, "robustbench", package)
    resources = types.ModuleType("pkg_resources")  # gone from recent setuptools
    resources.resource_filename = lambda module, path: str(home / path)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pkg_resources", resources)
    spec = importlib.util.spec_from_file_location("robustbench.loaders", home / "loaders.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.CustomImageFolder


def test_the_same_images_labels_and_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = their_reader(monkeypatch)
    noise = np.random.default_rng(0)
    for synset in synsets():
        (tmp_path / "val" / synset).mkdir(parents=True)
    for name in official_list(robustbench_ids()).split():
        small = noise.integers(0, 256, (9 + int(noise.integers(8)), 12, 3), dtype=np.uint8)
        Image.fromarray(small).resize((40, 33)).save(tmp_path / "val" / name, "JPEG")
    bicubic = tv.Compose([tv.Resize(32, tv.InterpolationMode.BICUBIC), tv.CenterCrop(28), tv.ToTensor()])
    theirs = reader(str(tmp_path / "val"), bicubic)
    ours = load_data("robustbench-imagenet-5k", data_dir=tmp_path, model_transform="bicubic32crop28")
    assert len(theirs) == len(ours) == 5000 and ours.protocol["deviations"] == []
    chosen = list(range(0, 5000, 7))
    x, y = ours.read([ours.rows[k] for k in chosen])
    for k, pixels, label in zip(chosen, x, y.tolist(), strict=True):
        image, number = theirs[k][:2]
        assert torch.equal(image, pixels) and number == label
