"""`vitattack models pull|check|add`, offline, and --unsafe-pickle, as a user meets them."""

from __future__ import annotations

import datetime
import hashlib
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.cli.conftest import Here
from tests.cli.test_cli import refused
from tests.models.weights.hosts import Host, host, page
from vitattack.core import progress
from vitattack.core.assets import EMBEDDED
from vitattack.models.architectures.small import SMALL
from vitattack.models.weights import download

KWARGS = '{"embed_dim": 16, "depth": 1, "num_heads": 1}'
ARCH = ("--arch", "small:tiny_vit_32", "--arch-kwargs", KWARGS, "--normalize", "none", "--dataset", "cifar10")
VIT = ("--arch", "small:tiny_vit_32", "--normalize", "cifar10", "--dataset", "cifar10")
RUN = ("--limit", "4", "--threads", "1", "--quiet")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITATTACK_HOME", str(tmp_path / "home"))
    for name in ("VITATTACK_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setattr(download, "sleep", lambda seconds: None)
    return tmp_path / "home"


@pytest.fixture
def there() -> Iterator[Host]:
    with host() as server:
        yield server


def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return SMALL["tiny_vit_32"](embed_dim=16, depth=1, num_heads=1).state_dict()


def test_a_file_is_added_listed_checked_and_attacked(tmp_path: Path, home: Path, here: Here) -> None:
    torch.save({"model": {f"module.{k}": v for k, v in state().items()}}, tmp_path / "w.pth.tar")
    words = (
        "--weights-key",
        "model",
        "--strip-prefix",
        "module.",
        "--trained-for",
        "linf:8/255",
        "--summary",
        "mine: #1",
    )
    done = here("models", "add", "lab/mine", "w.pth.tar", *ARCH, *words, "--json")
    assert done.returncode == 0, done.stderr
    added = json.loads(done.stdout)
    assert (added["num_classes"], added["input"], added["threat"]) == (10, 32, "linf:8/255")
    assert added["weights"]["size"] == (tmp_path / "w.pth.tar").stat().st_size
    listed = json.loads(here("models", "list", "--json").stdout)
    assert listed[-1]["id"] == "lab/mine" and listed[-1]["summary"] == "mine: #1" and len(listed) > 3
    assert json.loads(here("models", "info", "lab/mine", "--json").stdout)["whereabouts"] == "local"
    done = here("eval", "lab/mine", "fgsm", *RUN, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["model"] == "lab/mine", done.stderr
    content = json.loads(here("models", "check", "lab/mine", "--limit", "8", "--threads", "1", "--json").stdout)
    assert content["clean"]["n"] == 8 and content["fits"] is None
    assert here("models", "add", "lab/second", "w.pth.tar", *ARCH, *words).returncode == 0
    assert {"lab/mine", "lab/second"} < {row["id"] for row in json.loads(here("models", "list", "--json").stdout)}
    (tmp_path / "w.pth.tar").write_bytes(b"changed")
    refused(here("eval", "lab/mine", "fgsm", *RUN), "it has 7 bytes, the zoo says")


def test_a_file_is_found_from_any_folder(tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(state(), tmp_path / "w.pt")
    assert here("models", "add", "mine", "file:w.pt", *ARCH).returncode == 0
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    done = here("models", "pull", "mine", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["weights"][0]["file"] == str(tmp_path / "w.pt"), done.stderr


def test_the_last_model_can_be_removed_by_hand(tmp_path: Path, home: Path, here: Here) -> None:
    torch.save(state(), tmp_path / "w.pt")
    assert here("models", "add", "mine", "w.pt", *ARCH).returncode == 0
    start = (home / "models.yaml").read_text().partition("  - id")[0]
    (home / "models.yaml").write_text(start)
    assert here("models", "list", "tiny").returncode == 0
    assert here("models", "add", "mine", "w.pt", *ARCH).returncode == 0
    (home / "models.yaml").write_text("schema: 1\nmodels: []\n")
    refused(here("models", "add", "mine", "w.pt", *ARCH), "models.yaml' is not laid out as it was written")
    assert (home / "models.yaml").read_text() == "schema: 1\nmodels: []\n"


def test_check_compares_with_the_number_that_was_said(tmp_path: Path, here: Here) -> None:
    path = EMBEDDED / "tiny-vit.safetensors"
    assert here("models", "add", "honest", str(path), *VIT, "--clean", "66.1/10000").returncode == 0
    assert here("models", "add", "boasting", str(path), *VIT, "--clean", "95/10000").returncode == 0
    done = here("models", "check", "honest", "--limit", "100", "--threads", "1")
    assert (
        done.returncode == 0 and "fits" in done.stdout and "(n = 100) on cifar10-demo[random:100:0]" in done.stdout
    ), done.stderr
    done = here("models", "check", "boasting", "--limit", "100", "--threads", "1", "--json")
    assert done.returncode == 1 and json.loads(done.stdout)["fits"] is False
    broken = {key: value.clone() for key, value in load_file(path).items()}
    save_file({key: value * 0 for key, value in broken.items()}, tmp_path / "zero.safetensors")
    assert here("models", "add", "zero", "zero.safetensors", *VIT, "--clean", "66.1/10000").returncode == 0
    assert here("models", "check", "zero", "--limit", "100", "--threads", "1").returncode == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("tiny-vit", "w.pt", *ARCH), "'tiny-vit' is in the zoo already: choose another name"),
        (("../x", "w.pt", *ARCH), "'../x' is no name for a model"),
        (("x.pt", "w.pt", *ARCH), "'x.pt' is no name for a model"),
        (("x", "nowhere.pt", *ARCH), "'nowhere.pt' does not exist"),
        (("x", "gdrive:?", *ARCH), "write gdrive:ID"),
        (("x", "embedded", *ARCH), "embedded weights ship with vitattack"),
        (("x", "w.pt"), "add --arch, such as"),
        (("x", "w.pt", *ARCH[:4]), "add --normalize, such as"),
        (("x", "w.pt", "--arch", "small:tiny_vit_32", "--normalize", "none"), "does not fit the architecture"),
        (("x", "w.pt", *ARCH, "--summary", "\x1b[31mred"), "where printable text belongs"),
        (("x", "file:nowhere.pt", *ARCH), "'nowhere.pt' does not exist"),
        (("x", "w.pt", *ARCH, "--clean", "many"), "write 91.2/10000"),
        (("x", "w.pt", *ARCH, "--clean", "101/5"), "write 91.2/10000"),
        (("x", "w.pt", *ARCH, "--trained-for", "8"), "write linf:8"),
        (("x", "w.pt", *ARCH, "--transform", "cut"), "cut"),
    ],
)
def test_what_cannot_be_added_is_not(
    words: tuple[str, ...], message: str, tmp_path: Path, home: Path, here: Here
) -> None:
    torch.save(state(), tmp_path / "w.pt")
    refused(here("models", "add", *words), message)
    assert not (home / "models.yaml").exists()


def test_pull_then_offline(there: Host, tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(state(), tmp_path / "w.pth")
    there.files["/w.pth"] = (tmp_path / "w.pth").read_bytes()
    there.faults["/w.pth"] = [page("<title>Google Drive - Quota exceeded</title>")]
    address = f"{there.url}/w.pth"
    refused(
        here("models", "add", "theirs", address, *ARCH), "sent Google Drive's page saying that its quota is used up"
    )
    done = here("models", "add", "theirs", address, *ARCH)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    done = here("models", "pull", "theirs", "tiny-vit", "--json")
    theirs, tiny = json.loads(done.stdout)["weights"]
    assert theirs["from"] == address and theirs["sha256"] == hashlib.sha256(there.files["/w.pth"]).hexdigest()
    assert load_file(theirs["file"]).keys() == state().keys() and tiny["from"] == "embedded"
    assert len(there.gets("/w.pth")) == 2
    assert here("eval", "theirs", "fgsm", *RUN, "--offline").returncode == 0
    (stored,) = tmp_path.glob("runs/*/result.json")
    assert theirs["sha256"] in stored.read_text()
    assert here("models", "add", "other", address, *ARCH, "--offline").returncode == 2
    text = (tmp_path / "home" / "models.yaml").read_text()
    (tmp_path / "home" / "models.yaml").write_text(text.replace("theirs", "missing"))
    monkeypatch.setenv("VITATTACK_OFFLINE", "1")
    refused(
        here("eval", "missing", "fgsm", *RUN), "(cached: theirs): run 'vitattack models pull missing' where there is"
    )
    refused(here("models", "pull", "nobody"), "unknown model 'nobody'")
    assert len(there.gets("/w.pth")) == 2


def test_unsafe_pickle_is_never_silent(tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"model": state(), "when": datetime.date(2026, 1, 1)}, tmp_path / "w.pt")
    words = ("eval", "w.pt", "fgsm", *ARCH[:6], "--weights-key", "model", *RUN)
    refused(here(*words), "objects besides tensors (datetime.date), which could run code")
    done = here(*words, "--unsafe-pickle")
    assert done.returncode == 0, done.stderr
    assert done.stderr == (
        "vitattack: --unsafe-pickle: 'w.pt' is unpickled without restrictions and could run code: datetime.date\n"
    )
    refused(here("eval", "timm:test_vit.r160_in1k", "--unsafe-pickle"), "--unsafe-pickle describes a checkpoint file")
    monkeypatch.setenv("VITATTACK_UNSAFE_PICKLE", "1")
    refused(here(*words), "unknown environment variable 'VITATTACK_UNSAFE_PICKLE'")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_download_is_shown_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from vitattack.cli.progress.download_progress import DownloadScreen

    monkeypatch.setenv("TERM", "xterm")
    for err, quiet, shown in ((Terminal(), False, True), (Terminal(), True, False), (io.StringIO(), False, False)):
        monkeypatch.setattr(sys, "stderr", err)
        fetching = DownloadScreen(quiet)
        with fetching.watched():
            for done in (1_000, 5_000_000, 10_000_000):
                progress.current_listener().progress("lab/model", done, 10_000_000)
            progress.current_listener().note("a mirror failed")
            progress.current_listener().warn("this is said always")
        text = err.getvalue()
        assert ("lab/model" in text and "MB" in text) == shown
        assert ("a mirror failed" in text) != quiet and "this is said always" in text


def test_the_cache_folder_of_each_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from vitattack.core.files import cache_home

    monkeypatch.delenv("VITATTACK_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    for platform, expected in (
        ("linux", ".cache/vitattack"),
        ("darwin", "Library/Caches/vitattack"),
        ("win32", "AppData/Local/vitattack/Cache"),
    ):
        monkeypatch.setattr(sys, "platform", platform)
        assert cache_home() == tmp_path / expected
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_home() == tmp_path / "x" / "vitattack"
