"""TRADES makes one clean forward per step, and learns exactly what it learns with two."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import timm
import torch
from torch import Tensor, nn

from tests.train.objectives.test_objectives import objective
from tests.train.small_runs import SHAPE
from vitattack.models.victim import Victim
from vitattack.train.data.batch import batch_rng
from vitattack.train.objectives.base import Objective
from vitattack.train.objectives.shared_forward import _generator_states, shared_clean_forward

TEXT = "trades(inner=pgd(steps=3, loss=kl_to, start=gauss))"


def with_statistics() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 30 * 30, 10))


def transformer(**changes: float) -> nn.Module:
    return timm.create_model("vit_tiny_patch16_224", num_classes=10, **SHAPE, **changes)


MODELS = {
    "plain": transformer,
    "dropout": lambda: transformer(proj_drop_rate=0.3),
    "drop_path": lambda: transformer(drop_path_rate=0.3),
    "batch_norm": with_statistics,
}


def images(count: int) -> tuple[Tensor, Tensor]:
    x = torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    return x, torch.arange(count)


def made(kind: str) -> Victim:
    torch.manual_seed(0)
    return Victim(MODELS[kind](), name=kind, num_classes=10, input_size=32).train()


def learned(victim: Victim, loss: Tensor) -> list[Tensor]:
    loss.backward()  # type: ignore[no-untyped-call]
    return [loss.detach(), *(p.grad for p in victim.parameters() if p.grad is not None), *victim.buffers()]


def count(victim: Victim) -> list[int]:
    seen = [0]

    def hook(module: nn.Module, args: object, output: object) -> None:
        seen[0] += 1

    victim.model.register_forward_hook(hook)
    return seen


@pytest.mark.parametrize(("kind", "forwards"), [("plain", 5), ("dropout", 6), ("drop_path", 6), ("batch_norm", 6)])
def test_the_step_is_that_of_crafting_and_loss_one_by_one(kind: str, forwards: int) -> None:
    """Three steps of the attack, two forwards of the loss, and a clean one in eval mode where that is another function."""
    trades, (x, y), rng = objective(TEXT), images(8), batch_rng(0, 0, 0, 8)
    assert type(trades).craft_and_loss is not Objective.craft_and_loss
    apart, together = made(kind), made(kind)
    torch.manual_seed(1)
    wanted = learned(apart, trades.loss(apart, x, trades.craft(apart, x, y, rng=rng), y))
    seen = count(together)
    torch.manual_seed(1)
    found = learned(together, trades.craft_and_loss(together, x, y, rng=rng))
    assert seen == [forwards]
    for a, b in zip(found, wanted, strict=True):
        assert torch.equal(a, b)
    assert together.training and all(p.requires_grad for p in together.parameters())


def test_only_the_very_tensor_is_recalled_and_nothing_after_an_error() -> None:
    victim, (x, _) = made("plain"), images(4)
    seen = count(victim)
    with pytest.raises(ZeroDivisionError), shared_clean_forward(victim, x):
        assert victim(x) is victim(x)
        assert seen == [1]
        victim(x.clone())
        assert seen == [2]
        raise ZeroDivisionError
    victim(x)
    assert seen == [3]


@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_what_a_forward_draws_from_the_generator_of_its_device_is_noticed(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout on a device leaves the generator of the CPU as it was."""
    place, asked = torch.device(kind), []

    def state(*where: torch.device) -> Tensor:
        asked.append(where)
        return torch.tensor([len(asked)])

    monkeypatch.setattr(torch.get_device_module(kind), "get_rng_state", state)
    x = cast(Tensor, SimpleNamespace(device=place, is_cuda=kind == "cuda"))
    assert _generator_states(x) != _generator_states(x)
    assert asked == ([(place,)] * 2 if kind == "cuda" else [()] * 2)


def test_a_forward_of_the_victims_own_is_asked_and_comes_back() -> None:
    victim, (x, _) = made("plain"), images(4)
    ask = victim.forward
    vars(victim)["forward"] = own = lambda given: 2 * ask(given)
    with shared_clean_forward(victim, x):
        assert torch.equal(victim(x), 2 * ask(x))
    assert vars(victim)["forward"] is own
