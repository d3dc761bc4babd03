"""`vitattack train` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Here
from tests.train.small_tora import changes

SMALL = [
    "fgsm-tiny",
    "data=cifar10-calib",
    "arch_kwargs={embed_dim: 16, depth: 1, num_heads: 2}",
    "validation=16",
    "batch_size=16",
    "probe=4",
    "epochs=1",
    "precision=fp32",
    "--device",
    "cpu",
    "--threads",
    "1",
]


def test_a_model_is_trained_registered_and_attacked(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITATTACK_HOME", str(tmp_path / "home"))
    done = here("train", *SMALL, "--json", "--add", "mine", "--log", "tensorboard")
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert content["schema"] == 1 and content["recipe"]["name"] == "fgsm-tiny" and len(content["epochs"]) == 1
    assert "epoch 1 loss" in done.stderr
    evaluated = here("eval", "mine", "fgsm", "--limit", "4", "--threads", "1", "--json", "--quiet")
    assert evaluated.returncode == 0 and json.loads(evaluated.stdout)["n"] == 4, evaluated.stderr
    again = here("train", *SMALL, "--add", "mine")
    assert again.returncode == 0 and "vitattack eval" in again.stdout and "epoch 1 loss" not in again.stderr, (
        again.stderr
    )
    other = here("train", *SMALL, "seed=1", "--add", "mine")
    assert other.returncode == 2 and "'mine' is in the zoo already" in other.stderr and "epoch" not in other.stderr


def test_without_a_recipe_the_recipes_are_listed(here: Here) -> None:
    done = here("train", "--json")
    names = [recipe["name"] for recipe in json.loads(done.stdout)["recipes"]]
    assert {"trades", "pgd-at", "light", "aas-at", "fgsm-tiny"} <= set(names)
    shown = here("train").stdout
    assert all(name in shown.split() for name in names) and " 110 " in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tradez"], "unknown recipe 'tradez': did you mean trades"),
        ([*SMALL, "epoch=2"], "unknown key 'epoch'"),
        ([*SMALL, "hooks=emma"], "unknown hook 'emma': did you mean ema"),
        ([*SMALL, "--init", "tiny-cnn-standard"], "does not fit the architecture"),
        ([*SMALL, "data=folder:nowhere"], "nowhere"),
        ([*SMALL, "--log", "tensorbord"], "did you mean tensorboard"),
        ([*SMALL, "--add", "tiny-vit"], "'tiny-vit' is in the zoo already"),
        ([*SMALL, "--add", "../mine"], "is no name for a model"),
        ([*SMALL, "augment=mixup(classes=100)"], "write mixup(classes=10)"),
        ([*SMALL, "--device", "cuda:7"], "use --device cpu"),
    ],
)
def test_bad_usage_is_one_line_and_code_2(here: Here, words: list[str], message: str) -> None:
    done = here("train", *words)
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_several_values_are_one_table(here: Here, tmp_path: Path) -> None:
    words = ["tora-tiny", *changes("lambda=0.1,0.9"), "--device", "cpu", "--threads", "1"]
    done = here("train", *words, "--json")
    assert done.returncode == 0, done.stderr
    runs = json.loads(done.stdout)["runs"]
    assert [run["values"] for run in runs] == [{"lambda": "0.1"}, {"lambda": "0.9"}]
    assert [len(run["phases"]) for run in runs] == [2, 2] and runs[0]["phases"][0] == runs[1]["phases"][0]
    shown = here("train", *words)
    assert all(text in shown.stdout for text in ("lambda 0.1", "lambda 0.9", "phase 1 of all", "PGD-10")), shown.stdout
    many = here("train", *words, "--add", "mine")
    assert many.returncode == 2 and "--add registers one model, and these are 2" in many.stderr
    planned = here("train", *words, "lambda=0.5", "batch_size=4", "--plan", "--json")
    assert [run["plan"]["steps"] for run in json.loads(planned.stdout)["runs"]] == [28, 28], planned.stderr
