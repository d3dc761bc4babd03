"""A TORA-ViT is a victim like any other: evaluated, attacked through its softmaxes, checked and diagnosed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.conftest import small_tora, toy_pictures
from vitattack.checks import check as checks
from vitattack.checks.items import of_gradient
from vitattack.diagnostics.diagnose import diagnose
from vitattack.evaluation.evaluate import evaluate
from vitattack.models.victim import Victim
from vitattack.models.zoo.file_options import FileOptions

X = toy_pictures(8)
SHORT_AUTO = "auto(k=2, steps=2, long=2)"
SHORT_AAS = "aas(pgd(steps=2), restarts=1, batches=1, batch=4, steps=2, rank_steps=1, keep=1)"


@pytest.fixture(scope="module")
def victim() -> Victim:
    return small_tora()


@pytest.fixture(scope="module")
def labels(victim: Victim) -> torch.Tensor:
    """The model's own predictions, so that all images are attacked."""
    with torch.no_grad():
        return victim(X).argmax(1)


def test_attacks_with_and_without_its_softmaxes(victim: Victim, labels: torch.Tensor) -> None:
    attacks = ["pgd(steps=3)", SHORT_AAS, SHORT_AUTO]
    found = evaluate(victim, attacks, data=(X, labels), limit=4, threads=1, threat="linf:2/255")
    pgd, aas, auto = found.results
    assert pgd.clean.accuracy == aas.clean.accuracy == 1 and auto.robust.accuracy <= pgd.robust.accuracy
    assert all(result.n == 4 and not any(r.violation for r in result.records) for result in found.results)


def test_its_head_of_a_file_is_chosen_by_an_argument(victim: Victim, tmp_path: Path) -> None:
    path = tmp_path / "tora.safetensors"
    save_file(victim.model.state_dict(), path)
    sizes = {"embed_dim": 32, "depth": 2, "num_heads": 2, "adapter_dim": 4}
    x, y = X[:4], torch.arange(4)
    keys = []
    for head in ("acc", "rob", "joint"):
        options = FileOptions("tora:small:tiny_vit_32", {**sizes, "head": head}, normalize="none")
        result = evaluate(str(path), "fgsm", data=(x, y), options=options, threads=1).results[0]
        victim.model.head = head  # type: ignore[assignment]
        with torch.no_grad():
            assert [record.clean for record in result.records] == victim(x).argmax(1).tolist()
        keys.append(result.job.key)
    assert len(set(keys)) == 3


def test_it_is_checked(victim: Victim, labels: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ("determinism", "attention softmax", "gradient fidelity")
    monkeypatch.setattr(checks, "CHECKS", {name: checks.CHECKS[name] for name in wanted})
    monkeypatch.setattr(of_gradient, "POINTS", 4)
    monkeypatch.setattr(checks, "IMAGES", 2)
    monkeypatch.setattr(checks, "ATTACK", SHORT_AUTO)
    checked = checks.check(victim, threat="linf:16/255", data=(X[:2], labels[:2]), threads=1)
    asked = {item.name: item.passed for item in checked.items}
    assert asked["determinism"] and asked["attention softmax"] and asked["gradient fidelity"]
    assert asked["certificate"] is not False and checked.verdict.word in ("holds", "cannot be told")


def test_its_softmaxes_are_diagnosed_and_its_gates_are_none(victim: Victim) -> None:
    layers = diagnose(victim, (X, torch.arange(8)), threads=1).json()["layers"]
    assert [layer["name"] for layer in layers] == [f"model.backbone.blocks.{number}.attn" for number in range(2)]
