"""Weights from each kind of host into the cache: checked, pinned, converted once, shared by processes."""

from __future__ import annotations

import argparse
import datetime
import hashlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from tests.models.weights.hosts import Host, cut, host, page, slowly, status
from vitattack.core.errors import UsageError
from vitattack.core.progress import Listener
from vitattack.models.weights import cache, download, fetch, sources
from vitattack.models.weights.fetch import fetch_state, weights_origin
from vitattack.models.weights.sources import WeightSources

STATE = {"a.weight": torch.arange(6.0).view(2, 3), "a.bias": torch.tensor([1.0, -1.0])}


def torch_file(content: object) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


TRAINING = torch_file(
    {
        "epoch": 3,
        "args": argparse.Namespace(lr=0.1, model="vit"),
        "state_dict": {f"module.{key}": value for key, value in STATE.items()},
        "state_dict_ema": {f"module.{key}": value + 1 for key, value in STATE.items()},
    }
)


class Heard(Listener):
    def __init__(self) -> None:
        self.bytes: list[tuple[str, int, int | None]] = []
        self.notes: list[str] = []
        self.warnings: list[str] = []

    def progress(self, what: str, done: int, total: int | None) -> None:
        self.bytes.append((what, done, total))

    def note(self, line: str) -> None:
        self.notes.append(line)

    def warn(self, line: str) -> None:
        self.warnings.append(line)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITATTACK_HOME", str(tmp_path / "home"))
    for name in ("VITATTACK_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(download, "sleep", lambda seconds: None)
    return tmp_path / "home"


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    with host() as server:
        monkeypatch.setattr(sources, "GITHUB", server.url)
        monkeypatch.setattr(sources, "DRIVE", server.url + "/drive")
        yield server


def same(found: dict[str, Tensor], plus: float = 0.0) -> bool:
    return found.keys() == STATE.keys() and all(torch.equal(found[key], STATE[key] + plus) for key in STATE)


def everything_below(root: Path) -> str:
    """The names and the text of all files."""
    return "".join(
        f"{path}\n{path.read_bytes().decode(errors='replace')}\n" for path in root.rglob("*") if path.is_file()
    )


def test_the_secret_of_a_signed_address_is_recorded_nowhere(there: Host, home: Path) -> None:
    there.files["/w.pth"] = torch_file(STATE)
    there.faults["/w.pth"] = [status(404)]
    signed = WeightSources((f"{there.url}/w.pth?X-Sig=TOPSECRET&e=1#TOPSECRET",))
    with pytest.raises(UsageError, match="/w.pth: 127.0.0.1 does not have the file") as caught:
        fetch_state(signed, name="Lab/x")
    assert "TOPSECRET" not in str(caught.value)
    broken = [lambda answer: answer.reply(200, there.files["/w.pth"], send=300), *[status(503)] * 9]
    there.faults["/w.pth"] = [status(404), *broken]
    heard = Heard()
    with pytest.raises(UsageError, match="from any of 2 sources"):
        fetch_state(WeightSources((signed.mirrors[0] + "2", *signed.mirrors)), name="Lab/x", progress=heard)
    assert heard.notes and "TOPSECRET" not in "".join(heard.notes) + everything_below(home)
    there.faults.clear()
    assert same(fetch_state(signed, name="Lab/x"))
    assert "TOPSECRET" not in everything_below(home) + str(weights_origin(signed, "Lab/x"))
    assert weights_origin(signed, "Lab/x")["from"] == cache.read_pins()["Lab/x"].source == f"{there.url}/w.pth"
    asked = len(there.asked)
    assert same(fetch_state(signed, name="Lab/x")) and len(there.asked) == asked


def test_another_query_is_another_file(there: Host, home: Path) -> None:
    there.files["/get?id=1"], there.files["/get?id=2"] = torch_file(STATE), save({"other": torch.ones(1)})
    assert same(fetch_state(WeightSources((f"{there.url}/get?id=1",)), name="x"))
    cache.pin_file().unlink()
    assert set(fetch_state(WeightSources((f"{there.url}/get?id=2",)), name="x")) == {"other"}


@pytest.mark.parametrize("text", ["http://example.org/w?TOPSECRET", "https:///w?TOPSECRET", "https://a b/w?TOPSECRET"])
def test_a_refused_address_is_shown_without_its_query(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        sources.parse_source(text)
    assert "TOPSECRET" not in str(caught.value)


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("mirror", "path"),
    [
        ("URL/w.pth.tar", "/w.pth.tar"),
        ("github:o/r@v1/w.pth.tar", "/o/r/releases/download/v1/w.pth.tar"),
        ("gdrive:0123456789abc", "/drive?id=0123456789abc&export=download&confirm=t"),
        ("nextcloud:URL/s/ToKeN/d/w.pth.tar", "/s/ToKeN/download?path=%2Fd&files=w.pth.tar"),
    ],
)
def test_a_training_checkpoint_from_each_host(mirror: str, path: str, there: Host, home: Path) -> None:
    there.files[path] = TRAINING
    weights = WeightSources((mirror.replace("URL", there.url),), weights_key=("state_dict",), strip_prefix=("module.",))
    heard = Heard()
    assert same(fetch_state(weights, name="Lab/x", progress=heard))
    assert heard.bytes[-1] == ("Lab/x", len(TRAINING), len(TRAINING)) and not heard.warnings
    pin = cache.read_pins()["Lab/x"]
    assert pin.sha256 == hashlib.sha256(TRAINING).hexdigest() and pin.size == len(TRAINING)
    assert pin.source == weights.mirrors[0]
    kept = files(home)
    assert {name.split("/")[0] for name in kept} == {"weights", "weights.lock.json", "locks"}
    assert len([name for name in kept if name.endswith(".safetensors")]) == 1
    asked = len(there.asked)
    assert same(fetch_state(weights, name="Lab/x", offline=True)) and len(there.asked) == asked
    ema = WeightSources(weights.mirrors, weights_key=("none", "state_dict_ema"), strip_prefix=("module.",))
    assert same(fetch_state(ema, name="Lab/x"), plus=1)


def test_mirrors_are_tried_in_order(there: Host) -> None:
    there.files["/good"] = save(STATE)
    there.faults["/page"] = [page("<html><title>Sorry</title></html>")]
    there.files["/other"] = save({"b": torch.zeros(2)})
    mirrors = tuple(f"{there.url}/{name}" for name in ("gone", "page", "other", "good"))
    good = hashlib.sha256(there.files["/good"]).hexdigest()
    heard = Heard()
    assert same(fetch_state(WeightSources(mirrors, sha256=good), name="x", progress=heard))
    assert len(heard.notes) == 3
    for note, part in zip(heard.notes, ("any more", "web page ('Sorry')", "the zoo says"), strict=True):
        assert part in note and note.endswith("; trying the next source")
    with pytest.raises(
        UsageError, match=r"cannot get the weights of 'y' from any of 2 sources: .*gone.*; .*other"
    ) as e:
        fetch_state(WeightSources((mirrors[0], mirrors[2]), sha256=good), name="y")
    assert "\n" not in str(e.value)


def test_a_wrong_hash_or_size_is_refused_and_nothing_is_kept(there: Host, home: Path) -> None:
    there.files["/w"] = save(STATE)
    with pytest.raises(UsageError, match=r"it has sha256 .{12}\.\.\., the zoo says 000000000000\.\.\.: it is another"):
        fetch_state(WeightSources((there.url + "/w",), sha256="0" * 64), name="x")
    with pytest.raises(UsageError, match="has .* bytes, and the zoo says 7: it is another file"):
        fetch_state(WeightSources((there.url + "/w",), size=7), name="x")
    assert {name.split("/")[0] for name in files(home)} <= {"locks"}


def test_what_changes_after_the_first_download_is_refused(there: Host, home: Path) -> None:
    there.files["/w"] = save(STATE)
    weights = WeightSources((there.url + "/w",))
    fetch_state(weights, name="x")
    for path in (home / "weights").iterdir():
        path.unlink()
    there.files["/w"] = save({key: value * 2 for key, value in STATE.items()})
    with pytest.raises(
        UsageError, match=r"your lock file .*weights\.lock\.json says .*: it is another file; if you trust"
    ):
        fetch_state(weights, name="x")
    content = json.loads(cache.pin_file().read_text())
    content["weights"].pop("x")
    cache.pin_file().write_text(json.dumps(content))
    assert float(fetch_state(weights, name="x")["a.bias"][0]) == 2
    cache.pin_file().write_text("{")
    with pytest.raises(UsageError, match="the lock file .* is broken"):
        fetch_state(weights, name="x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('{"sha256": null, "size": 1, "source": "s", "date": "d"}', "sha256 is None, where str belongs"),
        ('{"sha256": "a", "size": "x", "source": "s", "date": "d"}', "size is 'x', where int belongs"),
        ('{"sha256": "a"}', "is broken"),
        ("[" * 100_000, "is broken"),
    ],
)
def test_a_lock_file_that_would_hold_nothing_is_refused(change: str, message: str, there: Host, home: Path) -> None:
    there.files["/w"] = save(STATE)
    home.mkdir()
    cache.pin_file().write_text(f'{{"weights": {{"x": {change}}}}}')
    with pytest.raises(UsageError, match=f"the lock file .*{message}"):
        fetch_state(WeightSources((there.url + "/w",)), name="x")


@pytest.mark.parametrize("note", ["{", "[]", "[" * 100_000, '{"source": 5, "size": "x"}'])
def test_a_broken_note_means_not_cached(note: str, there: Host, home: Path) -> None:
    there.files["/w"] = save(STATE)
    weights = WeightSources((there.url + "/w",))
    fetch_state(weights, name="x")
    (home / "weights" / "x.json").write_text(note)
    assert same(fetch_state(weights, name="x")) and len(there.gets("/w")) == 2


def test_a_damaged_cache_is_fetched_again(there: Host, home: Path) -> None:
    there.files["/w"] = save(STATE)
    weights = WeightSources((there.url + "/w",))
    fetch_state(weights, name="x")
    (kept,) = (home / "weights").glob("*.safetensors")
    kept.write_bytes(kept.read_bytes()[:-1] + b"\x00")
    assert same(fetch_state(weights, name="x")) and len(there.gets("/w")) == 2
    there.files["/v"] = save({key: value * 2 for key, value in STATE.items()})
    with pytest.raises(UsageError, match="your lock file"):  # the name stands for another file now
        fetch_state(WeightSources((there.url + "/v",)), name="x")


@pytest.mark.parametrize("stopped_in", ["store_converted", "add_pin"])
def test_a_stop_before_the_hash_is_noted_loses_it_for_no_later_call(
    stopped_in: str, there: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    there.files["/w"] = save(STATE)
    weights = WeightSources((there.url + "/w",))

    def stop(*given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(cache, stopped_in, stop)
        fetch_state(weights, name="x")
    assert same(fetch_state(weights, name="x")) and len(there.gets("/w")) == 1
    sha256 = hashlib.sha256(there.files["/w"]).hexdigest()
    assert cache.read_pins()["x"].sha256 == weights_origin(weights, "x")["sha256"] == sha256
    cache.pin_file().unlink()
    assert weights_origin(weights, "x") == {"from": there.url + "/w", "sha256": sha256}


@pytest.mark.parametrize("damage", ["bit", "end", "note"])
def test_a_download_that_was_damaged_before_its_hash_was_noted_is_fetched_again(
    damage: str, there: Host, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there.files["/w"] = save(STATE)
    weights = WeightSources((there.url + "/w",))

    def stop(*given: object, **more: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(fetch, "read_checkpoint", stop)
        fetch_state(weights, name="x")
    (file,) = (path for path in (home / "downloads").iterdir() if path.suffix != ".sha256")
    content = file.read_bytes()
    if damage == "bit":  # in a tensor: every parser takes it
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "end":
        file.write_bytes(content[:-1])
    else:
        file.with_name(file.name + ".sha256").write_bytes(b"\xff")
    assert same(fetch_state(weights, name="x")) and len(there.gets("/w")) == 2
    assert cache.read_pins()["x"].sha256 == hashlib.sha256(content).hexdigest()
    assert not files(home / "downloads")


def test_a_name_never_leads_out_of_the_cache(there: Host, home: Path, tmp_path: Path) -> None:
    there.files["/../../w.pt"] = there.files["/w.pt"] = save(STATE)
    names = ["../../x", "/etc/x", "a/b", "A/B", "a-b", "..", "x" * 300, "a\\b", "caf\u00e9", "\x1b[31m"]
    for name in names:
        assert same(fetch_state(WeightSources((there.url + "/../../w.pt",)), name=name))
    assert len(list((home / "weights").glob("*.safetensors"))) == len(names)
    assert {p.name for p in tmp_path.iterdir()} == {"home"}


def test_offline_says_what_is_there_and_how_to_get_the_rest(there: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    there.files["/w"] = save(STATE)
    fetch_state(WeightSources((there.url + "/w",)), name="known")
    for variable in ("VITATTACK_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(variable, "1")
        message = (
            rf"'x' is not cached and {variable} forbids the network \(cached: known\): run 'vitattack models pull x'"
        )
        for mirror in (there.url + "/w", "hf-hub:no/body", "timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k"):
            with pytest.raises(UsageError, match=message):
                fetch_state(WeightSources((mirror,)), name="x")
        assert same(fetch_state(WeightSources((there.url + "/w",)), name="known"))
        with pytest.raises(UsageError, match="from any of 2 sources: file:nowhere.pt: the file .*; .*not in the cache"):
            fetch_state(WeightSources(("file:nowhere.pt", there.url + "/w")), name="x")
        monkeypatch.setenv(variable, "0")
    assert len(there.asked) == 1


def test_local_files_are_read_where_they_are(tmp_path: Path, home: Path) -> None:
    path = tmp_path / "w.pth.tar"
    path.write_bytes(TRAINING)
    sha256 = hashlib.sha256(TRAINING).hexdigest()
    local = WeightSources((f"file:{path}",), sha256=sha256, weights_key=("state_dict",), strip_prefix=("module.",))
    assert same(fetch_state(local, name="x", offline=True)) and not home.exists()
    path.write_bytes(TRAINING + b" ")
    with pytest.raises(UsageError, match="the zoo says"):
        fetch_state(local, name="x")
    path.unlink()
    with pytest.raises(UsageError, match=r"cannot get the weights of 'x': file:.*w\.pth\.tar' does not exist"):
        fetch_state(local, name="x")


def test_a_pickle_with_more_than_tensors_waits_for_the_word_and_then_says_so(there: Host, home: Path) -> None:
    there.files["/w.pt"] = torch_file({"state_dict": STATE, "when": datetime.date(2026, 1, 1)})
    weights = WeightSources((there.url + "/w.pt",), weights_key=("state_dict",))
    with pytest.raises(UsageError, match=r"besides tensors \(datetime\.date\).*--unsafe-pickle"):
        fetch_state(weights, name="x")
    heard = Heard()
    assert same(fetch_state(weights, name="x", unsafe=True, progress=heard))
    assert len(there.gets("/w.pt")) == 1  # what was refused was kept, unread
    assert heard.warnings == [
        "--unsafe-pickle: 'w.pt' is unpickled without restrictions and could run code: datetime.date"
    ]
    assert same(fetch_state(weights, name="x")) and not files(home / "downloads")
    with pytest.warns(UserWarning, match="--unsafe-pickle"):
        fetch_state(weights, name="y", unsafe=True)


def test_a_cut_download_goes_on_in_the_next_call(there: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "TRIES", 1)
    there.files["/w.pth.tar"] = TRAINING
    there.faults["/w.pth.tar"] = [cut(1000), status(503)]
    weights = WeightSources((there.url + "/w.pth.tar",), weights_key=("state_dict",), strip_prefix=("module.",))
    with pytest.raises(UsageError, match=r"cannot give the file \(503\)"):
        fetch_state(weights, name="x")
    assert same(fetch_state(weights, name="x"))
    assert there.gets("/w.pth.tar") == [None, "bytes=1000-", "bytes=1000-"]


def test_a_home_that_cannot_be_written_is_one_line(
    there: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VITATTACK_HOME", str(tmp_path / "file" / "below"))
    there.files["/w"] = save(STATE)
    with pytest.raises(UsageError, match=r"cannot write the cache '.*below' \(Not a directory\): set VITATTACK_HOME"):
        fetch_state(WeightSources((there.url + "/w",)), name="x")


@pytest.mark.parametrize("given", ["x" * 5000, "~nobody-of-this-name/x"])
def test_a_home_that_is_no_path_is_one_line(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITATTACK_HOME", given)
    with pytest.raises(UsageError, match="VITATTACK_HOME '.*' cannot be a path .*: correct it") as caught:
        cache.pin_file()
    assert len(str(caught.value)) < 300


TWO = """
import sys, time
from pathlib import Path
from vitattack.models.weights.fetch import fetch_state, weights_origin
from vitattack.models.weights.sources import WeightSources
me, other, url = sys.argv[1:]
Path(me).touch()
while not Path(other).exists():
    time.sleep(0.01)
print(len(fetch_state(WeightSources((url,)), name="shared")))
"""


def test_two_processes_fetch_a_file_once(there: Host, tmp_path: Path, home: Path) -> None:
    there.files["/w"] = save(STATE)
    there.faults["/w"] = [slowly(1.0)]
    flags = [str(tmp_path / name) for name in "ab"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    both = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", TWO, *pair, there.url + "/w"], stdout=-1, text=True, env=environment
        )
        for pair in (flags, flags[::-1])
    ]
    for process in both:
        out, _ = process.communicate(timeout=60)
        assert (process.returncode, out) == (0, "2\n")
    assert len(there.gets("/w")) == 1
    assert not files(home / "downloads") and len(list((home / "weights").glob("*.safetensors"))) == 1
