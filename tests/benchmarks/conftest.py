"""Scripts of benchmarks/ are run where they are; a small model and its images as files, for those that read files."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tests.conftest import tiny_vit, toy_pictures

ROOT = Path(__file__).resolve().parents[2] / "benchmarks"
ARCH, KWARGS = "small:tiny_vit_32", {"embed_dim": 32, "depth": 2, "num_heads": 2}
Script = Callable[[str], ModuleType]


class Files(NamedTuple):
    """A checkpoint and images that it classifies as they are labelled, but for one."""

    model: Path
    data: str


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """A script by its path in benchmarks/, imported as `python` runs it: with its own folder in front."""
    before = set(sys.modules)

    def imported(path: str) -> ModuleType:
        monkeypatch.syspath_prepend(str((ROOT / path).parent))
        return importlib.import_module(Path(path).stem)

    yield imported
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(ROOT)):
            del sys.modules[name]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    victim = tiny_vit()
    assert isinstance(victim.model, nn.Module)
    x = (toy_pictures(13, seed=5) * 255).round() / 255
    with torch.no_grad():
        y = victim(x).argmax(1)
    y[2] = (y[2] + 1) % 10
    save_file(victim.model.state_dict(), tmp_path / "model.safetensors")
    pixels = (x * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    np.savez(tmp_path / "images.npz", image=pixels, label=y.numpy())
    return Files(tmp_path / "model.safetensors", f"npz:{tmp_path / 'images.npz'}")
