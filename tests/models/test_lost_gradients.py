"""Gradients that a model loses: cut, refused by autograd, or zero."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from vitattack.models.lost_gradients import find_lost_gradient

IMAGES = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))


class Step(nn.Module):
    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(x)


class WithoutGrad(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = body(lambda x: x)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return out


def body(change: Callable[[Tensor], Tensor]) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 1), Step(change), nn.Flatten(), nn.Linear(64, 3))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (body(lambda x: x.detach()), "the graph is cut in '1' (Step)"),
        (body(lambda x: x.mul(9).byte().float()), "the graph is cut in '1' (Step)"),
        (body(lambda x: torch.from_numpy(x.detach().numpy())), "the graph is cut in '1' (Step)"),
        (body(lambda x: torch.from_numpy(x.numpy())), "it cannot run under autograd in '1' (Step) (Can't call numpy()"),
        (WithoutGrad(), "the graph is cut in the forward of WithoutGrad, which runs under no_grad"),
        (
            nn.Sequential(nn.Conv2d(3, 3, 1), WithoutGrad()),
            "the graph is cut in '1' (WithoutGrad), which runs under no_grad",
        ),
        (body(lambda x: (9 * x).round()), "the gradient becomes zero in '1' (Step)"),
        (body(lambda x: 0 * x), "the gradient becomes zero in '1' (Step)"),
    ],
)
def test_the_first_module_that_loses_the_gradient_is_named(model: nn.Module, said: str) -> None:
    assert str(find_lost_gradient(model, IMAGES)).startswith(said)


def test_a_model_with_a_gradient_has_lost_none() -> None:
    assert find_lost_gradient(body(lambda x: x.relu()), IMAGES) is None
    # that the loss saturates is no matter of the model
    assert find_lost_gradient(nn.Sequential(body(lambda x: x), Step(lambda z: 1e6 * z)), IMAGES) is None


def test_a_model_that_fails_either_way_is_not_explained() -> None:
    def fail(x: Tensor) -> Tensor:
        raise RuntimeError("out of order")

    assert find_lost_gradient(body(fail), IMAGES) is None
