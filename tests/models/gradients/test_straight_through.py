"""Straight-through gradients: the forward pass is the model's own to the bit, the backward what a part of it hides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vitattack.models.gradients.straight_through import Detour, StraightThrough
from vitattack.models.gradients.substitutes import KINDS, Kind
from vitattack.models.victim import Victim


class Rounding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return -grads[0]  # a lie


def winners(x: Tensor) -> Tensor:
    least = x.flatten(1).topk(3, dim=1).values[:, -1].view(-1, 1, 1, 1)
    return x * (x >= least)


def placed_winners(x: Tensor) -> Tensor:
    flat = x.flatten(1)
    mask = torch.zeros_like(flat).scatter(1, flat.topk(3, dim=1).indices, 1.0)
    return (flat * mask).view_as(x)


class Tail(nn.Module):
    """A transformation of the images, then a fixed linear layer."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.change = change
        self.last = nn.Linear(48, 3)
        nn.init.normal_(self.last.weight, generator=torch.Generator().manual_seed(0))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.change(x).flatten(1))
        return logits


def victim_of(change: Callable[[Tensor], Tensor]) -> Victim:
    return Victim(Tail(change), name="tail", num_classes=3, input_size=4).eval()


def gradient(model: nn.Module, x: Tensor) -> Tensor:
    point = x.clone().requires_grad_()
    (grad,) = torch.autograd.grad(model(point)[:, 0].sum(), point)
    return grad


CHANGES: dict[str, tuple[Callable[[Tensor], Tensor], Kind]] = {
    "round": (lambda x: (x * 8).round() / 8, "rounding"),
    "floor in place of a cast": (lambda x: torch.floor(x * 8).div(8), "rounding"),
    "sign": (lambda x: (x - 0.5).sign(), "rounding"),
    "clamp": (lambda x: x.clamp(0.4, 0.6), "clamp"),
    "winners by threshold": (winners, "threshold"),
    "winners by place": (placed_winners, "threshold"),
    "where": (lambda x: torch.where((x - 0.5).abs() < 0.3, 0.5 * torch.ones_like(x), x), "threshold"),
    "masked fill": (lambda x: x.masked_fill(x < 0.7, 0.0), "threshold"),
    "a function that lies": (Rounding.apply, "function"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_gradients_pass_a_call_as_if_it_were_the_identity(name: str) -> None:
    change, kind = CHANGES[name]
    victim, x = victim_of(change), torch.rand(5, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    view = StraightThrough(victim, Detour(frozenset([kind])))
    wanted = victim.model.last.weight[0].view(3, 4, 4).expand_as(x)  # type: ignore[union-attr]
    found = gradient(view, x)
    assert torch.allclose(found, wanted, atol=1e-6) and view.seen
    assert not torch.allclose(gradient(victim, x), wanted, atol=1e-3)
    assert torch.equal(view(x.clone().requires_grad_()), victim(x))  # to the bit
    other = StraightThrough(victim, Detour(frozenset(KINDS) - {kind}))
    assert torch.equal(gradient(other, x), gradient(victim, x))


def test_a_threshold_that_becomes_a_number_gets_the_slope_of_a_sigmoid() -> None:
    thresholds = torch.linspace(0.1, 0.9, 9)
    victim = victim_of(lambda x: (x[..., None] > thresholds).float().mean(-1))
    x = torch.rand(5, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    found = gradient(StraightThrough(victim, Detour(frozenset(["threshold"]))), x)
    wanted = victim.model.last.weight[0].view(3, 4, 4).expand_as(x)  # type: ignore[union-attr]
    assert torch.equal(found.sign(), wanted.sign())


def test_masks_that_do_not_come_from_the_images_keep_their_gradient() -> None:
    """A causal mask, or a ReLU, is no culprit."""
    upper = torch.ones(4, 4).triu().bool()
    x = torch.rand(5, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    for change in (lambda x: x.masked_fill(upper, 0.0), lambda x: (x - 0.5).relu(), lambda x: x * upper):
        victim = victim_of(change)
        view = StraightThrough(victim, Detour(frozenset(KINDS)))
        assert torch.equal(gradient(view, x), gradient(victim, x)) and not view.seen


class Quantiser(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy((x.detach().numpy() * 8).round() / 8)  # no gradient at all


def test_modules_and_the_front_are_gone_around() -> None:
    x = torch.rand(5, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    inner = nn.Sequential(Quantiser(), nn.Flatten(), nn.Linear(48, 3))
    victim = Victim(inner, name="quantised", num_classes=3, input_size=4).eval()
    wanted = inner[2].weight[0].view(3, 4, 4).expand_as(x)
    for detour in (Detour(modules=("Quantiser",)), Detour(front="model.1")):
        view = StraightThrough(victim, detour)
        assert torch.allclose(gradient(view, x), wanted)
        assert torch.equal(view(x.clone().requires_grad_()), victim(x))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in victim.modules())
