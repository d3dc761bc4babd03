"""Checkpoints: strict, safe, and one line for whatever does not fit."""

from __future__ import annotations

import datetime
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from vitattack.core.errors import UsageError
from vitattack.models.weights.state_dict import load_strict, read_state

CPU = torch.device("cpu")


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth"])
def test_a_state_dict_comes_back(tmp_path: Path, suffix: str) -> None:
    path, source, target = tmp_path / f"w{suffix}", net(), net()
    save_file(source.state_dict(), path) if suffix == ".safetensors" else torch.save(source.state_dict(), path)
    load_strict(target, read_state(path), path.name)
    assert all(
        torch.equal(a, b) for a, b in zip(source.state_dict().values(), target.state_dict().values(), strict=True)
    )


def test_containers_and_prefixes_only_when_declared(tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    torch.save({"state_dict": {f"module.{k}": v for k, v in net().state_dict().items()}}, path)
    with pytest.raises(UsageError, match="under state_dict: add --weights-key state_dict"):
        read_state(path)
    with pytest.raises(UsageError, match=r"every name starts with 'module\.': add --strip-prefix module\."):
        load_strict(net(), read_state(path, weights_key="state_dict"), "w.pt")
    load_strict(net(), read_state(path, weights_key="state_dict", strip_prefix="module."), "w.pt")
    with pytest.raises(UsageError, match="has no 'model': it holds state_dict"):
        read_state(path, weights_key="model")


def test_mismatches_are_named(tmp_path: Path) -> None:
    state = net().state_dict()
    del state["0.bias"]
    with pytest.raises(UsageError, match=r"1 missing, such as 0\.bias"):
        load_strict(net(), state, "w")
    with pytest.raises(UsageError, match=r"1 unknown, such as extra"):
        load_strict(net(), {**net().state_dict(), "extra": torch.zeros(1)}, "w")
    with pytest.raises(UsageError, match=r"0\.weight is \(5, 4\) in the file and \(3, 4\) in the model"):
        load_strict(net(), {**net().state_dict(), "0.weight": torch.zeros(5, 4)}, "w")
    with pytest.raises(UsageError, match="NaN or infinite values in 0.weight"):
        load_strict(net(), {**net().state_dict(), "0.weight": torch.full((3, 4), torch.nan)}, "w")


class Bomb:
    """Runs code when unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('the bomb went off')",)


def test_pickles_that_could_run_code_are_refused(tmp_path: Path) -> None:
    torch.save(Bomb(), tmp_path / "bomb.pt")
    torch.save(Bomb(), tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Bomb()))
    for name in ("bomb.pt", "old.pth", "plain.pt"):
        with pytest.raises(UsageError, match=rf"'{name}' would run code when unpickled \(\w+\.exec\): it is refused"):
            read_state(tmp_path / name)
    torch.save({"model": torch.zeros(1), "when": datetime.date(2026, 1, 1)}, tmp_path / "objects.pt")
    with pytest.raises(UsageError, match=r"objects besides tensors \(datetime\.date\).*re-save.*--unsafe-pickle"):
        read_state(tmp_path / "objects.pt", weights_key="model")


def test_corrupt_files_are_one_line(tmp_path: Path) -> None:
    torch.save(net().state_dict(), tmp_path / "cut.pt")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "cut.pt").read_bytes()[:200])
    save_file(net().state_dict(), tmp_path / "cut.safetensors")
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "cut.safetensors").read_bytes()[:-3])
    (tmp_path / "lies.safetensors").write_bytes(b"\xff" * 64)
    (tmp_path / "page.pt").write_text("<html>quota exceeded</html>")
    (tmp_path / "empty.pth").write_bytes(b"")
    for name in ("cut.pt", "cut.safetensors", "lies.safetensors", "page.pt", "empty.pth"):
        with pytest.raises(UsageError, match=rf"'{name}' is not a readable") as caught:
            read_state(tmp_path / name)
        assert "\n" not in str(caught.value)
    (tmp_path / "w.dat").write_bytes(b"")
    with pytest.raises(UsageError, match="no checkpoint by its name"):
        read_state(tmp_path / "w.dat")
    torch.save(torch.zeros(3), tmp_path / "tensor.pt")
    with pytest.raises(UsageError, match="holds a Tensor, not named tensors"):
        read_state(tmp_path / "tensor.pt")
    torch.save({"a": torch.zeros(1), "epoch": 3}, tmp_path / "mixed.pt")
    with pytest.raises(UsageError, match="'epoch', which is no named tensor"):
        read_state(tmp_path / "mixed.pt")


def test_tensors_of_special_kinds_are_refused(tmp_path: Path) -> None:
    for name, content in (
        ("sparse.pt", {"w": torch.eye(2).to_sparse()}),
        ("complex.pt", {"w": torch.zeros(2, dtype=torch.complex64)}),
    ):
        torch.save(content, tmp_path / name)
        with pytest.raises(UsageError, match="in a special form"):
            read_state(tmp_path / name)
    torch.save({0: torch.zeros(2)}, tmp_path / "numbers.pt")
    with pytest.raises(UsageError, match="'0', which is no named tensor"):
        read_state(tmp_path / "numbers.pt")


def test_a_wrong_hash_is_refused(tmp_path: Path) -> None:
    save_file(net().state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(UsageError, match="the zoo says 000000000000"):
        read_state(tmp_path / "w.safetensors", sha256="0" * 64)
