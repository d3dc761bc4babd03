"""Objectives of TORA-ViT: which loss reaches which parameter, and that the weighted sum is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.train.small_runs import run, small
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.architectures.build import build_architecture
from vitattack.models.architectures.tora import ToraViT
from vitattack.models.victim import Victim
from vitattack.threats.lp import LpBall
from vitattack.train.hooks.only import Only
from vitattack.train.objectives.base import Objective
from vitattack.train.objectives.tora_apart import tora_apart
from vitattack.train.objectives.trade_off import trade_off
from vitattack.train.objectives.trades import trades

BALL = LpBall("linf", 8 / 255)
X = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([1, 2, 3, 4])


def victim(**own: Any) -> Victim:
    torch.manual_seed(0)
    sizes = {"embed_dim": 16, "depth": 2, "num_heads": 2, "adapter_dim": 4}
    model = build_architecture("tora:small:tiny_vit_32", {**sizes, **own})
    for name, parameter in model.named_parameters():
        if not name.startswith("backbone."):
            torch.nn.init.normal_(parameter, std=0.3)
    return Victim(model, name="tora", num_classes=10, input_size=32)


def gradients(objective: Objective, model: Victim) -> dict[str, Tensor]:
    """Gradients by parameter name, of those that have one."""
    model.train()
    loss = objective.craft_and_loss(model, X, Y, rng=SampleRng(0, range(4)))
    names, learning = zip(*((n, p) for n, p in model.model.named_parameters() if p.requires_grad), strict=True)
    found = torch.autograd.grad(loss, learning, allow_unused=True)
    return {name: grad for name, grad in zip(names, found, strict=True) if grad is not None}


def own_loss(model: Victim, x: Tensor, head: str) -> Tensor:
    assert isinstance(model.model, ToraViT)
    model.model.head = head  # type: ignore[assignment]
    try:
        return F.cross_entropy(model(x), Y)
    finally:
        model.model.head = "joint"


@pytest.mark.parametrize("rob", [None, trades(BALL, beta=3.0)], ids=["fgsm", "trades"])
@pytest.mark.parametrize("predict", ["own", "joint"])
def test_every_adapter_learns_from_its_own_loss_and_the_fusion_from_both(rob: Objective | None, predict: Any) -> None:
    model = victim()
    objective = tora_apart(BALL, rob=rob, predict=predict)
    found = gradients(objective, model)
    assert set(found) == {name for name, _ in model.model.named_parameters() if not name.startswith("backbone.")}
    assert all(bool(grad.abs().sum() > 0) for grad in found.values())
    learning = {name: p for name, p in model.model.named_parameters() if p.requires_grad}
    assert set(learning) == set(found)  # all flags are as before
    heads = {side: side if predict == "own" else "joint" for side in ("acc", "rob")}
    clean = dict(zip(found, _grad(own_loss(model, X, heads["acc"]), learning, found), strict=True))
    with objective._training(model, "rob"):
        robust_loss = objective.rob.craft_and_loss(model, X, Y, rng=SampleRng(0, range(4)))
    assert model.model.head == "joint"
    robust = dict(zip(found, _grad(robust_loss, learning, found), strict=True))
    for name, grad in found.items():
        side = {"acc", "rob"} & set(name.split("."))
        wanted = [
            part[name] for key, part in (("acc", clean), ("rob", robust)) if side <= {key} and part[name] is not None
        ]
        torch.testing.assert_close(grad, sum(wanted[1:], wanted[0]), atol=1e-6, rtol=1e-4)


def _grad(loss: Tensor, learning: dict[str, Any], names: Any) -> tuple[Tensor | None, ...]:
    return torch.autograd.grad(loss, [learning[name] for name in names], allow_unused=True)


def test_own_gates_are_given_back() -> None:
    model = victim()
    found = gradients(tora_apart(BALL, gates="own"), model)
    assert isinstance(model.model, ToraViT) and model.model.forced == "learned"
    learned = {"layers.0.fusion.query.weight", "layers.0.fusion.key.weight"}
    assert all(not found[name].any() for name in learned & set(found)) and "layers.0.fusion.value.weight" in found


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_sum_is_weighted(share: float) -> None:
    model = victim()
    rob = trades(BALL, beta=2.0)
    objective, rng = trade_off(BALL, share=share, rob=rob), SampleRng(0, range(4))
    x_adv = objective.craft(model, X, Y, rng=rng)
    wanted = share * rob.loss(model, X, x_adv, Y) + (1 - share) * F.cross_entropy(model(X), Y)
    torch.testing.assert_close(objective.loss(model, X, x_adv, Y), wanted)
    torch.testing.assert_close(objective.craft_and_loss(model, X, Y, rng=rng), wanted)
    assert objective.robust_share == share and torch.equal(x_adv, X) == (share == 0)


def test_only_what_matches_is_trained() -> None:
    model = Only("fusion").wrap(victim())
    names = {name for name, p in model.named_parameters() if p.requires_grad}
    assert names == {name for name, _ in model.named_parameters() if "fusion" in name} != set()
    assert set(gradients(trade_off(BALL), model)) == {name.removeprefix("model.") for name in names}  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="leaves nothing to train"):
        Only("nowhere").wrap(victim())
    with pytest.raises(UsageError, match="is not a regular expression"):
        Only("(")


def test_models_without_two_adapters_are_refused(tmp_path: Path) -> None:
    for model in (victim(tuning="single"), victim(tuning="head")):
        with pytest.raises(UsageError, match="trains the two adapters of a TORA-ViT"):
            gradients(tora_apart(BALL), model)
    with pytest.raises(UsageError, match="trains the two adapters of a TORA-ViT"):
        run(small(objective="tora_apart", hooks=(), epochs=1), tmp_path)


def test_the_best_epoch_is_chosen_by_the_trade_off(tmp_path: Path) -> None:
    done = run(small(objective="trade_off(share=0.25)", hooks=(), epochs=3), tmp_path)
    assert done.result["chosen_by"] == "0.25 of robust plus 0.75 of clean accuracy on 8 held-out images"
    best = max(done.epochs, key=lambda row: (0.25 * row["robust"] + 0.75 * row["clean"], row["clean"]))
    assert done.result["best"]["epoch"] == best["epoch"]
