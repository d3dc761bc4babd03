"""The parts of a model that its gradient cannot be trusted for are found, and no others."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.conftest import tiny_vit, toy_pictures
from vitattack.models.gradients.culprits import culprits, front
from vitattack.models.victim import Victim


class Rounded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x * 4).round() / 4 + 1e-3 * x  # a gradient, but of no use


class Shell(nn.Module):
    """A module around another one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return out


class Front(nn.Module):
    def __init__(self, model: nn.Module, rounded: bool) -> None:
        super().__init__()
        self.model, self.rounded = model, rounded

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model((x * 16).round() / 16 if self.rounded else (x - 0.5) / 0.2)
        return logits


def layers(*planted: nn.Module) -> Victim:
    torch.manual_seed(0)
    first, last = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8 * 32 * 32, 10)
    model = nn.Sequential(first, nn.GELU(), *planted, nn.Flatten(), last)
    return Victim(model, name="layers", num_classes=10, input_size=32).eval()


def moved(x: Tensor) -> Tensor:
    return x + 0.01 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).sign()


def test_the_innermost_module_that_breaks_its_promise_is_the_culprit() -> None:
    x = toy_pictures(8)
    assert culprits(layers(Shell(nn.Sequential(Rounded()))), x, moved(x)) == ("Rounded",)


def test_honest_models_have_no_culprit_and_no_front() -> None:
    x = toy_pictures(8)
    for victim in (tiny_vit(), layers(nn.ReLU(), nn.BatchNorm2d(8), Shell(nn.Tanh()))):
        assert culprits(victim, x, moved(x)) == () and front(victim, x) is None


def test_the_front_is_what_happens_to_images_and_normalisation_is_none_of_it() -> None:
    x, victim = toy_pictures(4), tiny_vit()
    for rounded, name in ((True, "model.model"), (False, None)):
        outer = Victim(Front(victim, rounded), name="outer", num_classes=10, input_size=32)
        assert front(outer, x) == name
