"""Numpy files: CIFAR-C and generated images, mapped and never joined."""

from __future__ import annotations

import struct
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from vitattack.core.errors import UsageError
from vitattack.data import load_data
from vitattack.data.catalogue import DATA_SETS
from vitattack.data.formats import arrays
from vitattack.data.formats.array_on_disk import ArrayOnDisk
from vitattack.data.formats.arrays import ArraySource, npz_parts
from vitattack.data.hub_sets import HubArrays


def cifar_c(root: Path, num_classes: int) -> Path:
    """The official shapes; the files are sparse, so that 150 MB of zeros take no room."""
    folder = root / f"CIFAR-{num_classes}-C"
    folder.mkdir(parents=True)
    x = np.lib.format.open_memmap(folder / "fog.npy", "w+", np.uint8, (50_000, 32, 32, 3))
    for severity in range(1, 6):
        for k in (0, 1, 9_999):
            x[(severity - 1) * 10_000 + k] = severity * 10 + min(k, 2)
    x.flush()
    np.save(folder / "labels.npy", np.tile(np.arange(10_000) % num_classes, 5).astype(np.uint8))
    return root


@pytest.mark.parametrize("num_classes", [10, 100])
def test_cifar_c_severities_are_slices(tmp_path: Path, num_classes: int) -> None:
    cifar_c(tmp_path, num_classes)
    for severity in (1, 3, 5):
        data = load_data(f"cifar{num_classes}-c/fog/{severity}", data_dir=tmp_path)
        x, y = data.read([0, 1, 9_999])
        assert (x[:, 0, 0, 0] * 255).round().int().tolist() == [severity * 10 + k for k in (0, 1, 2)]
        assert y.tolist() == [0, 1, 9_999 % num_classes]
        assert len(data) == 10_000 and data.num_classes == num_classes
    assert len(load_data(f"cifar{num_classes}-c/fog", data_dir=tmp_path)) == 50_000
    few = load_data(f"cifar{num_classes}-c/fog/2[:2]", data_dir=tmp_path)
    assert few.text == f"cifar{num_classes}-c/fog/2[:2]" and few.protocol["data"] == f"cifar{num_classes}-c/fog/2"
    assert few.digest() != load_data(f"cifar{num_classes}-c/fog/3[:2]", data_dir=tmp_path).digest()


def test_wrong_cifar_c_files(tmp_path: Path) -> None:
    cifar_c(tmp_path, 10)
    folder = tmp_path / "CIFAR-10-C"
    np.save(folder / "snow.npy", np.zeros((100, 32, 32, 3), np.uint8))
    np.save(folder / "frost.npy", np.array([object()]), allow_pickle=True)
    (folder / "zoom_blur.npy").write_bytes((folder / "fog.npy").read_bytes()[:1000])
    for name, message in (
        ("snow", r"images \(100, 32, 32, 3\) and labels \(50000,\) for snow, not"),
        ("frost", "not a plain npy file"),
        ("zoom_blur", "not a plain npy file"),
        ("spatter", "has no spatter.npy: get it from zenodo"),
    ):
        with pytest.raises(UsageError, match=message):
            load_data(f"cifar10-c/{name}/1", data_dir=tmp_path)
    (folder / "labels.npy").unlink()
    with pytest.raises(UsageError, match="labels.npy' does not exist: the official archive has it"):
        load_data("cifar10-c/fog/1", data_dir=tmp_path)


def parts(root: Path, packed: bool = False) -> list[Path]:
    root.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, count in ((1, 3), (2, 2), (10, 4)):
        images = np.full((count, 4, 4, 3), number, np.uint8)
        images[:, 0, 0, 0] = np.arange(count)
        paths.append(root / f"50m_part{number}.npz")
        (np.savez_compressed if packed else np.savez)(paths[-1], image=images, label=np.full(count, number % 10))
    return paths


@pytest.mark.parametrize("packed", [False, True])
def test_parts_follow_each_other_by_number_and_stay_on_the_disk(tmp_path: Path, packed: bool) -> None:
    parts(tmp_path, packed)
    data = load_data(f"npz:{tmp_path}")
    assert len(data) == 9 and isinstance(data.source, ArraySource)
    x, y = data.read([8, 0, 3, 4])
    assert (x[:, 1, 1, 1] * 255).round().int().tolist() == [10, 1, 2, 2]
    assert (x[:, 0, 0, 0] * 255).round().int().tolist() == [3, 0, 0, 1] and y.tolist() == [0, 1, 2, 2]
    mapped = [isinstance(x, ArrayOnDisk) for x, _ in data.source._parts]
    assert mapped == [not packed] * 3
    assert load_data(f"npz:{tmp_path}[:5]").digest() != load_data(f"npz:{tmp_path}[:6]").digest()


def test_large_packed_members_are_unpacked_once_into_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITATTACK_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(arrays, "IN_MEMORY", 100)
    paths = parts(tmp_path / "parts", packed=True)
    first = npz_parts(paths, 10)
    files = sorted((tmp_path / "home" / "arrays").iterdir())
    before = [path.stat().st_mtime_ns for path in files]
    again = npz_parts(paths, 10)
    assert len(files) == 6 and [path.stat().st_mtime_ns for path in files] == before
    assert isinstance(again._parts[0][0], ArrayOnDisk)
    for one, two in zip(first.read(range(9)), again.read(range(9)), strict=True):
        assert torch.equal(one, two)


def test_named_generated_sets_are_counted_and_their_labels_checked(tmp_path: Path) -> None:
    entry = DATA_SETS["edm-cifar10-20m"]
    assert isinstance(entry, HubArrays)
    folder = tmp_path / "cifar10"
    made = parts(folder)
    for path, file in zip(made, entry.files, strict=False):
        path.rename(tmp_path / file)
    with pytest.raises(UsageError, match="holds 5 images, the set has 20,000,000"):
        load_data("edm-cifar10-20m", data_dir=tmp_path)
    small = partial(HubArrays, entry.summary, entry.repo, entry.files)
    with DATA_SETS.temporarily("edm-cifar10-20m", small(10, 5)):
        assert len(load_data("edm-cifar10-20m", data_dir=tmp_path)) == 5
    with (
        DATA_SETS.temporarily("edm-cifar10-20m", small(2, 5)),
        pytest.raises(UsageError, match="has labels from 2 to 2, the set has 2 classes"),
    ):
        load_data("edm-cifar10-20m", data_dir=tmp_path)


def lying(path: Path, shape: tuple[int, ...], body: bytes, descr: str = "|u1", mode: int = zipfile.ZIP_STORED) -> Path:
    """An npz whose image member says another shape than it has."""
    head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    member = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + body
    with zipfile.ZipFile(path, "w", mode) as archive:
        archive.writestr("image.npy", member)
        archive.writestr("label.npy", member)
    return path


@pytest.mark.parametrize("mode", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_hostile_archives_are_refused_in_one_line(tmp_path: Path, mode: int) -> None:
    bad = [
        lying(tmp_path / "long.npz", (10**12, 32, 32, 3), b"\0" * 64, mode=mode),
        lying(tmp_path / "overflow.npz", (2**62, 2**62, 3, 3), b"\0" * 64, mode=mode),
        lying(tmp_path / "negative.npz", (-1, 4, 4, 3), b"\0" * 48, mode=mode),
        lying(tmp_path / "object.npz", (1,), b"cos\nsystem\n", "|O", mode=mode),
    ]
    (tmp_path / "torn.npz").write_bytes(parts(tmp_path / "parts")[0].read_bytes()[:-30])
    (tmp_path / "words.npz").write_bytes(b"words")
    for path in [*bad, tmp_path / "torn.npz", tmp_path / "words.npz"]:
        with pytest.raises(UsageError, match="is not a plain npz file") as caught:
            load_data(f"npz:{path}")
        assert "\n" not in str(caught.value)
    np.savez(tmp_path / "other.npz", pixels=np.zeros(3))
    with pytest.raises(UsageError, match="holds pixels.*: it needs arrays named image and label"):
        load_data(f"npz:{tmp_path}/other.npz")
    np.savez(tmp_path / "flat.npz", image=np.zeros((2, 8), np.uint8), label=np.zeros(2, int))
    with pytest.raises(UsageError, match=r"images of shape \(2, 8\)"):
        load_data(f"npz:{tmp_path}/flat.npz")
    np.savez(tmp_path / "few.npz", image=np.zeros((2, 4, 4, 3), np.uint8), label=np.zeros(3, int))
    with pytest.raises(UsageError, match="give one label per image"):
        load_data(f"npz:{tmp_path}/few.npz")
    (tmp_path / "bare").mkdir()
    with pytest.raises(UsageError, match="holds no npz file"):
        load_data(f"npz:{tmp_path}/bare")


def test_a_member_larger_than_the_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITATTACK_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(arrays, "IN_MEMORY", 100)
    monkeypatch.setattr(arrays.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 10})())
    with pytest.raises(UsageError, match="more than .* has room for"):
        load_data(f"npz:{parts(tmp_path / 'parts', packed=True)[0]}")
    assert not list((tmp_path / "home").rglob("*.part"))
