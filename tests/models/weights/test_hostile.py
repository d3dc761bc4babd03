"""Files made to harm: refused in one line each, before anything is run, unpacked or written."""

from __future__ import annotations

import argparse
import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from tests.models.weights.hosts import host
from tests.models.weights.test_fetch import torch_file
from vitattack.core.errors import UsageError
from vitattack.models.weights.fetch import fetch_state
from vitattack.models.weights.sources import WeightSources
from vitattack.models.weights.state_dict import read_state
from vitattack.models.zoo.catalogue import zoo_entries

GOOD = {"w": torch.arange(200.0)}


class Runs:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.path}",)


def zipped(change: Callable[[str, bytes], bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """The torch file of GOOD with its records changed."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(torch_file(GOOD))) as old, zipfile.ZipFile(stream, "w", compression) as new:
        for record in old.infolist():
            new.writestr(record.filename, change(record.filename, old.read(record)))
    return stream.getvalue()


def bomb() -> bytes:
    return zipped(lambda name, data: bytes(1 << 26) if name.endswith("data/0") else data, zipfile.ZIP_DEFLATED)


def big_pickle() -> bytes:
    return zipped(lambda name, data: data + bytes(65 << 20) if name.endswith("data.pkl") else data)


def longer_than_its_record() -> bytes:
    """A pickle that says its storage of 200 numbers has five million."""

    def claim(name: str, data: bytes) -> bytes:
        if not name.endswith("data.pkl"):
            return data
        assert data.count(b"K\xc8") >= 1
        return data.replace(b"K\xc8", b"J" + struct.pack("<i", 5_000_000))

    return zipped(claim)


def legacy(content: object) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream, _use_new_zipfile_serialization=False)
    return stream.getvalue()


def script() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("x/data.pkl", pickle.dumps({}))
        archive.writestr("x/constants.pkl", pickle.dumps(()))
    return stream.getvalue()


def tar(format_: int) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=format_) as archive:
        for name in ("../outside", "/outside", "storages", "pickle"):
            member = tarfile.TarInfo(name)
            member.size = 5
            archive.addfile(member, io.BytesIO(b"hello"))
    return stream.getvalue()


def header(said: object, length: int | None = None, body: bytes = bytes(800)) -> bytes:
    """A safetensors file with a header of our own."""
    text = json.dumps(said).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def entry(shape: list[int], start: int, end: int) -> dict[str, object]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}


LIES = {
    "longer than the file": header({"w": entry([200], 0, 800)}, length=1 << 39),
    "endless": b"\xff" * 8 + b"{" + bytes(100),
    "shape": header({"w": entry([2000], 0, 800)}),
    "overflow": header({"w": entry([1 << 62, 1 << 62], 0, 800)}),
    "beyond the end": header({"w": entry([400], 0, 1600)}),
    "overlap": header({"v": entry([200], 0, 800), "w": entry([200], 0, 800)}),
    "negative": header({"w": {"dtype": "F32", "shape": [-200], "data_offsets": [0, 800]}}),
    "no header": header([1, 2, 3]),
    "cut": save(GOOD)[:-3],
}


def legacy_with_a_long_pickle() -> bytes:
    """A torch file of before 1.6 whose pickle alone is large; its storages follow it in the stream."""
    return legacy({"w": torch.zeros(3), "text": "x" * (65 << 20)})


def twice() -> bytes:
    """A safetensors file that names one tensor twice; who reads which is anybody's guess."""
    first, second = json.dumps(entry([200], 0, 800)), json.dumps(entry([100, 2], 0, 800))
    text = f'{{"w": {first}, "w": {second}}}'.encode()
    return struct.pack("<Q", len(text)) + text + bytes(800)


TORCH = {
    "zip bomb": (bomb, r"is compressed, [\d,]+ bytes that would grow to [\d,]{10,}, and torch never compresses"),
    "large pickle before 1.6": (legacy_with_a_long_pickle, r"holds a pickle of more than 64 MB"),
    "large pickle": (big_pickle, r"holds a pickle of more than 64 MB"),
    "record": (longer_than_its_record, "is not a readable checkpoint|claims more values"),
    "strides": (
        lambda: torch_file({"w": torch.zeros(1).expand(10**12)}),
        "claims more values than it holds, such as in w",
    ),
    "nested strides": (lambda: torch_file({"m": {"w": torch.zeros(1).expand(10**12)}}), "claims more values"),
    "views": (lambda: torch_file({str(i): GOOD["w"] for i in range(9999)}), "claims more values|is not"),
    "old strides": (lambda: legacy({"w": torch.zeros(1).expand(10**12)}), "claims more values"),
    "script": (script, "is a TorchScript program, not weights"),
    "archive": (lambda: script().replace(b"data.pkl", b"dota.pkl"), "zip archive without a checkpoint in it"),
    "tar": (lambda: tar(tarfile.USTAR_FORMAT), "it is a tar archive, which is not unpacked"),
    "gnu tar": (lambda: tar(tarfile.GNU_FORMAT), "it is a tar archive, which is not unpacked"),
    "gzip": (lambda: b"\x1f\x8b\x08" + bytes(99), "it is a gzip archive"),
    "git lfs": (lambda: b"version https://git-lfs.github.com/spec/v1\n", "it is a Git LFS pointer"),
    "text pickle": (lambda: pickle.dumps({"w": 1}, protocol=0), "it is no checkpoint by its first bytes"),
    "empty": (lambda: b"", "it is an empty file"),
}


def refused(path: Path, message: str) -> None:
    before = set(path.parent.rglob("*"))
    with pytest.raises(UsageError, match=message) as caught:
        read_state(path)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 500
    assert set(path.parent.rglob("*")) == before


@pytest.mark.parametrize("kind", TORCH)
def test_torch_files(kind: str, tmp_path: Path) -> None:
    make, message = TORCH[kind]
    path = tmp_path / "w.pth.tar"
    path.write_bytes(make())
    refused(path, message)


@pytest.mark.parametrize("kind", LIES)
def test_safetensors_that_lie(kind: str, tmp_path: Path) -> None:
    for name in ("w.safetensors", "w.pt"):
        (tmp_path / name).write_bytes(LIES[kind])
        refused(tmp_path / name, rf"'{name}' is not a readable (safetensors file|checkpoint) \(")


def test_a_tensor_named_twice(tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(twice())
    refused(tmp_path / "w.safetensors", r"is not a readable safetensors file \('w' stands twice in its header\)")


def test_a_large_file_of_before_1_6_is_read(tmp_path: Path) -> None:
    state = {"w": torch.arange(20_000_000.0), "v": torch.ones(3, dtype=torch.float64)}
    (tmp_path / "w.pt").write_bytes(legacy(state))
    found = read_state(tmp_path / "w.pt")
    assert all(torch.equal(found[key], state[key]) for key in state)


@pytest.mark.parametrize("make", [torch_file, legacy, pickle.dumps], ids=["zip", "legacy", "plain"])
def test_a_pickle_that_runs_code(make: Callable[[object], bytes], tmp_path: Path) -> None:
    evil = Runs(tmp_path / "outside")
    path = tmp_path / "w.pt"
    path.write_bytes(make({"state_dict": GOOD if make is not pickle.dumps else {}, "args": evil}))
    refused(path, r"'w\.pt' would run code when unpickled \((posix|nt)\.system\): it is refused, do not load it")


def test_only_the_namespace_is_let_in(tmp_path: Path) -> None:
    torch.serialization.add_safe_globals([Path, type(tmp_path)])  # as another library might
    try:
        for name, content in (("path", {"m": GOOD, "p": tmp_path}), ("range", {"m": GOOD, "p": range(3)})):
            (tmp_path / f"{name}.pt").write_bytes(torch_file(content))
            with pytest.raises(UsageError, match="holds Python objects besides tensors"):
                read_state(tmp_path / f"{name}.pt", weights_key="m")
        assert Path in torch.serialization.get_safe_globals()
    finally:
        torch.serialization.clear_safe_globals()
    (tmp_path / "args.pt").write_bytes(torch_file({"m": GOOD, "args": argparse.Namespace(a=argparse.Namespace(b=1))}))
    assert torch.equal(read_state(tmp_path / "args.pt", weights_key="m")["w"], GOOD["w"])
    assert argparse.Namespace not in torch.serialization.get_safe_globals()


def test_names_of_tensors_cannot_drive_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    for content in ({"\x1b[2J\n": torch.zeros(1)}, {"a\nb": 1}, {"\x1b]0;x\x07": {"w": torch.zeros(1)}}):
        path.write_bytes(torch_file(content))
        refused(path, r"'w\.pt' (holds|keeps)")


def test_hostile_downloads_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITATTACK_HOME", str(tmp_path / "home"))
    for name in ("VITATTACK_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    with host() as server:
        bodies = [make() for make, _ in TORCH.values()] + list(LIES.values())
        bodies += [torch_file(Runs(tmp_path / "outside")), legacy(Runs(tmp_path / "outside"))]
        for number, body in enumerate(bodies):
            server.files[f"/{number}"] = body
            with pytest.raises(UsageError, match="cannot get the weights of 'x'") as caught:
                fetch_state(WeightSources((f"{server.url}/{number}",)), name="x")
            assert str(caught.value).isprintable()
    assert {p.name for p in tmp_path.iterdir()} == {"home"}
    left = {p.relative_to(tmp_path / "home").parts[0] for p in (tmp_path / "home").rglob("*") if p.is_file()}
    assert left == {"locks"}


ZOOS = {
    "tag": "schema: 1\nmodels: !!python/object/apply:os.system ['touch outside']\n",
    "own tag": "schema: 1\nmodels: !evil [1]\n",
    "anchors": "schema: 1\n"
    + "a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n"
    + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))
    + "models: []\n",
    "loop": "schema: 1\nmodels: &m [*m]\n",
    "deep": "schema: 1\nmodels: " + "[" * 20_000 + "\n",
    "binary": "schema: 1\nmodels: \x00\x01\n",
    "no text": "\udcff",
    "keys": "schema: 1\nmodels:\n  - ? [a, b]\n    : 1\n",
}


@pytest.mark.parametrize("kind", ZOOS)
def test_zoo_files(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITATTACK_HOME", str(tmp_path))
    (tmp_path / "models.yaml").write_bytes(ZOOS[kind].encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError, match=r"cannot read the zoo file|models\.yaml") as caught:
        zoo_entries()
    assert str(caught.value).isprintable() and len(str(caught.value)) < 500
    assert [p.name for p in tmp_path.iterdir()] == ["models.yaml"]


def test_a_zoo_file_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITATTACK_HOME", str(tmp_path))
    (tmp_path / "models.yaml").write_bytes(b"#" * (9 << 20))
    with pytest.raises(UsageError, match="is larger than 8 MB"):
        zoo_entries()
