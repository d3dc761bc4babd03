"""The real hub client against a hub on this machine: HF_ENDPOINT, its cache, and offline afterwards."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save

from tests.models.hugging_face.folders import save_vit
from tests.models.weights.hosts import COMMIT, host
from tests.models.weights.test_fetch import torch_file
from vitattack.core.assets import EMBEDDED
from vitattack.core.errors import UsageError
from vitattack.models.weights.fetch import fetch_state
from vitattack.models.weights.sources import WeightSources

# Its constants are read from the environment when the client is imported: a process of its own.
CODE = """
import hashlib, json, sys, torch
from importlib.util import find_spec
from vitattack.models.weights import cache
from vitattack.models.weights.fetch import fetch_state
from vitattack.models.weights.sources import WeightSources
from vitattack.models.zoo.load import load_model
from vitattack.core.progress import Listener
from vitattack import data

class Heard(Listener):
    bytes = []
    def progress(self, what, done, total):
        self.bytes.append([what, done, total])

out = {}
def attempt(name, call):
    try:
        out[name] = call()
    except Exception as error:
        out[name] = f"{type(error).__name__}: {error}"

heard = Heard()
digest = lambda state: hashlib.sha256(b"".join(state[k].numpy().tobytes() for k in sorted(state))).hexdigest()
get = lambda name, mirror: digest(fetch_state(WeightSources((mirror,)), name=name, progress=heard))
attempt("safetensors", lambda: get("safe", "hf-hub:lab/tiny"))
attempt("pickle", lambda: get("pickle", "hf-hub:lab/old/sub/w.bin"))
attempt("fallback", lambda: get("fallback", "hf-hub:lab/bin"))
attempt("timm", lambda: get("timm", "timm:test_vit.r160_in1k"))
attempt("no file", lambda: get("none", "hf-hub:lab/empty"))
attempt("where", lambda: cache.weights_location(WeightSources(("hf-hub:lab/tiny",)), "safe"))
attempt("timm where", lambda: cache.weights_location(WeightSources(("timm:test_vit.r160_in1k",)), "timm"))
attempt("data", lambda: [len(data.load_data("cifar10")), data.load_data("cifar10[:8]").read([0, 5])[1].tolist()])
attempt("victim", lambda: load_model("timm:test_vit.r160_in1k", torch.device("cpu")).victim.num_classes)
def of_transformers(text):
    loaded = load_model(text, torch.device("cpu"))
    return [loaded.victim.num_classes, loaded.record["source"], loaded.record["revision"]]

if find_spec("transformers"):
    attempt("vit", lambda: of_transformers("hf:lab/vit"))
    attempt("vit at", lambda: of_transformers("hf-hub:lab/vit@main"))
    attempt("code", lambda: of_transformers("hf:lab/code"))
    attempt("adapter", lambda: of_transformers("hf:lab/adapter"))
    attempt("no model", lambda: of_transformers("hf:lab/empty"))
out["pins"] = {name: [pin.revision, pin.source] for name, pin in cache.read_pins().items()}
out["progress"] = heard.bytes
print(json.dumps(out))
"""


Runs = tuple[dict[str, object], dict[str, object]]


def state_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {key: value.contiguous() for key, value in model.state_dict().items()}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """What the same lines find online and then offline."""
    root = tmp_path_factory.mktemp("hub")
    torch.manual_seed(0)
    safe, old = save({"w": torch.ones(4)}), torch_file({"w": torch.zeros(3)})
    with host() as hub:
        hub.is_hub = True
        hub.files = {
            "/lab/tiny/resolve/main/model.safetensors": safe,
            "/lab/old/resolve/main/sub/w.bin": old,
            "/lab/bin/resolve/main/pytorch_model.bin": old,
            "/timm/test_vit.r160_in1k/resolve/main/model.safetensors": save(state_of(timm.create_model("test_vit"))),
            "/datasets/uoft-cs/cifar10/resolve/main/plain_text/test-00000-of-00001.parquet": (
                EMBEDDED / "cifar10-demo.parquet"
            ).read_bytes(),
        }
        if find_spec("transformers"):
            save_vit(root / "vit")
            vit = {path.name: path.read_bytes() for path in (root / "vit").iterdir()}
            config = json.loads(vit["config.json"])
            code = json.dumps({**config, "auto_map": {"AutoModel": "own.Model"}}).encode()
            repositories = {
                "vit": vit,
                "code": {**vit, "config.json": code},
                "adapter": {**vit, "adapter_config.json": b"{}"},
            }
            for name, contents in repositories.items():
                hub.files |= {f"/lab/{name}/resolve/main/{file}": body for file, body in contents.items()}
        for path, body in list(hub.files.items()):
            hub.files[path.replace("/main/", f"/{COMMIT}/")] = body
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("HF_", "VITATTACK_"))},
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(root / "hf"),
            "VITATTACK_HOME": str(root / "home"),
            "OMP_NUM_THREADS": "1",
            "NO_PROXY": "127.0.0.1",
        }

        def run(**more: str) -> dict[str, object]:
            done = subprocess.run(
                [sys.executable, "-P", "-c", CODE],
                capture_output=True,
                text=True,
                env={**environment, **more},
                check=False,
            )
            assert done.returncode == 0, done.stderr
            found: dict[str, object] = json.loads(done.stdout)
            return found

        online = run()
        asked = len(hub.asked)
        offline = run(VITATTACK_OFFLINE="1", HF_HUB_OFFLINE="1")
        assert len(hub.asked) == asked
        shutil.rmtree(root / "hf")
        return online, offline


def test_weights_and_data_come_through_the_client(runs: Runs) -> None:
    online, _ = runs
    ones = hashlib.sha256(torch.ones(4).numpy().tobytes()).hexdigest()
    zeros = hashlib.sha256(torch.zeros(3).numpy().tobytes()).hexdigest()
    assert (online["safetensors"], online["pickle"], online["fallback"]) == (ones, zeros, zeros)
    assert online["no file"] == (
        "UsageError: cannot get the weights of 'none': hf-hub:lab/empty: "
        "the repository lab/empty has no file model.safetensors or pytorch_model.bin"
    )
    assert online["where"] == online["timm where"] == "cached"
    assert isinstance(online["timm"], str) and len(online["timm"]) == 64
    assert online["data"] == [1000, online["data"][1]] and len(online["data"][1]) == 2  # type: ignore[index]
    assert online["victim"] == 1000


def test_the_commit_is_pinned_and_progress_is_told(runs: Runs) -> None:
    online, _ = runs
    pins = online["pins"]
    assert isinstance(pins, dict) and set(pins) == {"safe", "pickle", "fallback", "timm"}
    assert pins["safe"] == [COMMIT, "hf-hub:lab/tiny"] and pins["timm"] == [COMMIT, "timm:test_vit.r160_in1k"]
    progress = online["progress"]
    assert isinstance(progress, list) and any(done == total for _, done, total in progress)


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
def test_repositories_of_transformers_are_checked_before_their_weights_are_fetched(runs: Runs) -> None:
    for found in runs:
        assert found["vit"] == found["vit at"] == [10, "transformers", COMMIT]
        assert "names Python code of its own, which is never run (auto_map)" in str(found["code"])
        assert "holds an adapter, which is no model by itself" in str(found["adapter"])
    assert runs[0]["no model"] == "NoSuchFile: the repository lab/empty has no file config.json"
    assert "connect and run again, or give a local file" in str(runs[1]["no model"])


def test_offline_gives_the_same_from_the_caches(runs: Runs) -> None:
    online, offline = runs
    for key in ("safetensors", "pickle", "fallback", "timm", "where", "timm where", "data", "victim"):
        assert offline[key] == online[key], key
    assert "'none' is not cached and VITATTACK_OFFLINE forbids the network (cached: fallback, pickle)" in str(
        offline["no file"]
    )


ASK = """
import sys
from vitattack.data.hub_sets import fetch_from_hub
from vitattack.core.errors import UsageError
from vitattack.models.weights.fetch import fetch_state
from vitattack.models.weights.sources import WeightSources
from vitattack.models.zoo.load import load_model
for call in (
    lambda: fetch_state(WeightSources(("hf-hub:a/b",)), name="x"),
    lambda: load_model("timm:test_vit.r160_in1k", "cpu"),
    lambda: fetch_from_hub("a/b", "x.parquet"),
):
    try:
        call()
    except UsageError as error:
        print(error)
"""


def ask(home: Path, **variables: str) -> list[str]:
    """What weights, timm and data sets answer, each from the hub of these variables and with a token."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "VITATTACK_")) and "proxy" not in k.lower()}
    more = {"HF_HOME": str(home), "VITATTACK_HOME": str(home), "HF_TOKEN": "hf_TOPSECRET", "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", ASK],
        capture_output=True,
        text=True,
        env={**kept, **more, "OMP_NUM_THREADS": "1", **variables},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_hub_without_encryption_is_not_asked(tmp_path: Path) -> None:
    answers = ask(tmp_path, HF_ENDPOINT="http://hub.invalid?key=TOPSECRET")
    assert len(answers) == 3 and "TOPSECRET" not in "".join(answers)
    assert all("HF_ENDPOINT: address 'http://hub.invalid' is not encrypted" in line for line in answers), answers


def test_no_token_is_sent_without_encryption(tmp_path: Path) -> None:
    with host() as hub:
        hub.is_hub = True
        ask(tmp_path, HF_ENDPOINT=hub.url)
        assert len(hub.asked) >= 3 and hub.tokens == [None] * len(hub.asked)


def test_a_hub_that_cannot_be_found_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITATTACK_HOME", str(tmp_path))
    for name in ("VITATTACK_OFFLINE", "HF_HUB_OFFLINE", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "https://hub.invalid")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf"))
    with pytest.raises(UsageError, match="hf-hub:a/b: hub.invalid cannot be reached, and it is not in the hub's cache"):
        fetch_state(WeightSources(("hf-hub:a/b",)), name="x")
