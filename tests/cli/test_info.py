"""`vitattack models list|info`, and `eval` of a checkpoint that nobody registered."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch

from tests.cli.conftest import Here
from vitattack.models.zoo.catalogue import zoo_entries


def test_info_says_what_an_evaluation_needs_to_know(here: Here) -> None:
    def run(*words: str) -> str:
        done = here(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    content = json.loads(run("models", "info", "rb/Debenedetti2022Light_XCiT-S12/cifar10", "--json"))
    figures = content["figures"]
    assert figures["parameters"] == 25_872_154 and len(figures["attention"]) == 14
    assert content["normalize"] == {"mean": [0.4914, 0.4822, 0.4465], "std": [0.2471, 0.2435, 0.2616]}
    assert [r["value"] for r in content["reported"]] == [90.06, 56.14]
    assert content["whereabouts"] == "not cached" and content["licence"].startswith("MIT")
    text = run("models", "info", "tora2023/tora_vit_b_16-0.5", "--format", "csv")
    assert "tora:vit_base_patch16_224" in text and "not public" in text and "mce 34.44 %, n = ?" in text
    assert "cannot be built here" in run("models", "info", "easyrobust/rvt", "--format", "csv")


def test_list_finds_entries_by_text(here: Here) -> None:
    found = [entry["id"] for entry in json.loads(here("models", "list", "AdvXL", "--json").stdout)]
    assert found == ["advxl/vit_h14", "advxl/vit_g14"]
    line = "rb/Xu2024MIMIR_Swin-B,imagenet,linf:4/255,76.6 (5000),55.9 (5000),not cached"
    assert line in here("models", "list", "mimir_swin", "--format", "csv").stdout


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        (["rb/*S12*"], [f"rb/Debenedetti2022Light_XCiT-S12/{data}" for data in ("imagenet", "cifar10", "cifar100")]),
        (["RB/*s12*", "--data", "cifar100"], ["rb/Debenedetti2022Light_XCiT-S12/cifar100"]),
        (["aroid", "--data", "imagenette"], ["aroid/vit_b_imagenette"]),
        (["tiny-vit-s*", "--cached"], ["tiny-vit-standard", "tiny-vit-saturated"]),
        (["advxl", "--cached"], []),
    ],
)
def test_list_takes_patterns_and_filters(words: list[str], ids: list[str], here: Here) -> None:
    found = json.loads(here("models", "list", *words, "--json").stdout)
    assert [entry["id"] for entry in found] == ids
    assert all(("embedded" if "--cached" in words else "not cached") == entry["whereabouts"] for entry in found)


def test_list_says_which_data_sets_there_are(here: Here) -> None:
    done = here("models", "list", "--data", "cifar")
    assert done.returncode == 2 and "did you mean cifar10 or cifar100?" in done.stderr


@pytest.mark.parametrize("width", [None, "80"])
def test_ids_are_never_folded(width: str | None, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if width is not None:
        monkeypatch.setenv("COLUMNS", width)
    lines = here("models", "list").stdout.splitlines()
    shown = {line.split()[0] for line in lines if line.strip()}
    assert set(zoo_entries()) <= shown
    assert width is None or max(map(len, lines[:-1])) <= int(width)


def test_list_shows_the_number_within_what_was_trained_for(here: Here) -> None:
    shown = here("models", "list", "vit_g14", "--format", "csv").stdout
    assert "linf:4/255,83.9 (?),71.0 (?)" in shown  # not the 46.7 of l1:75


def test_list_does_not_wait_for_torch() -> None:
    code = (
        "import sys; from vitattack.models.zoo.catalogue import search_zoo; from vitattack.report.models import zoo_table;"
        "zoo_table(search_zoo('')); assert not {'torch', 'timm'} & set(sys.modules), 'slow'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_weights_to_fetch_by_hand_say_where(here: Here) -> None:
    done = here("models", "pull", "singh/ViT-B")
    assert done.returncode == 2 and "from https://nc.mlcloud.uni-tuebingen.de/index.php/s/XLL" in done.stderr


def test_eval_of_a_users_checkpoint_with_nothing_registered(tmp_path: Path, here: Here) -> None:
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", num_classes=100, depth=1)
    torch.save({"epoch": 3, "state_dict": {f"module.{k}": t for k, t in model.state_dict().items()}}, tmp_path / "c.pt")
    x = np.random.default_rng(0).integers(0, 256, (2, 224, 224, 3), dtype=np.uint8)
    np.savez(tmp_path / "d.npz", image=x, label=np.array([1, 2]))
    words = ["--arch", "vit_tiny_patch16_224", "--arch-kwargs", '{"depth": 1}', "--num-classes", "100"]
    words += ["--normalize", "imagenet", "--weights-key", "state_dict", "--strip-prefix", "module.", "--threads", "1"]
    done = here("eval", "./c.pt", "fgsm", "--data", "npz:d.npz", *words, "--quiet", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["n"] == 2
