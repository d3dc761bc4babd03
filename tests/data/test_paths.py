"""A path that exists is data without its kind in front."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vitattack.core.errors import UsageError
from vitattack.data import load_data
from vitattack.data.request import read_request


def test_an_npz_file_and_a_folder_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("images.npz", x=np.zeros((5, 3, 4, 4), np.float32), y=np.arange(5))
    (tmp_path / "val" / "dog").mkdir(parents=True)
    (tmp_path / "cifar10").mkdir()
    for text, kind, name, rows in (
        ("images.npz[:2]", "npz", "images.npz", ":2"),
        (f"{tmp_path}/images.npz", "npz", f"{tmp_path}/images.npz", None),
        ("val", "folder", "val", None),
        ("./cifar10", "folder", "./cifar10", None),
        ("cifar10", "set", "cifar10", None),  # the data set of that name comes first
    ):
        found = read_request(text)
        assert (found.kind, found.name, found.rows) == (kind, name, rows)
    assert read_request("val@crop224").transform == "crop224"
    with pytest.raises(UsageError, match="unknown data set 'other.npz'"):
        read_request("other.npz")
    assert len(load_data("images.npz[:2]")) == 2
