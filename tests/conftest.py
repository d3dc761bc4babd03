"""Shared victims and images: linear models with a known optimum, and one small transformer."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

# Threads that wait for each other sleep: tests run side by side, and spinning would take the cores from the others.
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # read when torch is imported
import torch
from torch import Tensor, nn

from vitattack.attacks.auto import assurance, attack, blind
from vitattack.evaluation.workers import Workers, alone
from vitattack.models.architectures.small import SMALL
from vitattack.models.architectures.tora import ToraViT
from vitattack.models.victim import Victim

# Keep the developer's cache and zoo out of the tests; set at import, since collection reads the zoo.
os.environ["VITATTACK_HOME"] = tempfile.mkdtemp(prefix="vitattack-tests-")
os.environ["VITATTACK_JOBS"] = "1"  # one process unless a test asks for more, however busy the machine is
torch.set_num_threads(1)  # equal sums on every machine, and no contention for cores


class Linear(nn.Module):
    """z = Wx + b in double precision: class 0 is true, class 1 the runner-up, the others far away."""

    def __init__(self, pixels: int = 192, classes: int = 5, gap: float = 3.0, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(classes, pixels, generator=generator, dtype=torch.float64) * 0.05)
        centre = torch.full((pixels,), 0.5, dtype=torch.float64)
        target = torch.tensor([0.0, -gap] + [-500.0] * (classes - 2), dtype=torch.float64)
        self.bias = nn.Parameter(target - self.weight.detach() @ centre)

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1).to(self.weight.dtype) @ self.weight.T + self.bias

    @property
    def slope(self) -> Tensor:
        """Gradient of the margin of the runner-up over the true class."""
        return (self.weight[1] - self.weight[0]).detach()


def linear_victim(**settings: float) -> tuple[Victim, Tensor]:
    model = Linear(**settings)  # type: ignore[arg-type]
    return Victim(model, name="linear", num_classes=5, input_size=8).double(), model.slope


def batch(n: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Images at a distance of at least 0.3 from the faces of the box, all of class 0."""
    generator = torch.Generator().manual_seed(seed)
    x = 0.5 + 0.02 * torch.randn(n, 3, 8, 8, generator=generator, dtype=torch.float64).clamp(-3, 3)
    return x, torch.zeros(n, dtype=torch.long)


def toy_pictures(n: int = 12, seed: int = 3) -> Tensor:
    """Smooth random images that differ from each other as much as photographs do."""
    coarse = torch.rand(n, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
    return nn.functional.interpolate(coarse, size=32, mode="bilinear")


def tiny_vit(seed: int = 0) -> Victim:
    """A random transformer with centred class biases, so that it predicts many classes and can be fooled."""
    return copy.deepcopy(_tiny_vit(seed))


@cache
def _tiny_vit(seed: int) -> Victim:
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    model = SMALL["tiny_vit_32"](embed_dim=32, depth=2, num_heads=2)
    torch.set_rng_state(state)
    victim = Victim(model, name="toy", num_classes=10, input_size=32).eval()
    with torch.no_grad():
        model.head.bias -= victim(toy_pictures(64, seed=9)).mean(0)  # type: ignore[union-attr, operator]
        model.head.weight *= 100  # type: ignore[union-attr, operator]
        model.head.bias *= 100  # type: ignore[union-attr, operator]
    return victim


_tiny_vit(0)  # before any test can have changed what it is made of


def small_tora(seed: int = 0, **own: Any) -> Victim:
    """A random TORA-ViT around the toy, whose adapters, gates and heads matter."""
    toy = tiny_vit(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed + 1)
        model = ToraViT(toy.model, adapter_dim=4, **own)  # type: ignore[arg-type]
        for name, parameter in model.named_parameters():
            if not name.startswith("backbone."):
                nn.init.normal_(parameter, std=0.3)
    victim = Victim(model, name="tora", num_classes=10, input_size=32).eval()
    with torch.no_grad():
        shift = victim(toy_pictures(64, seed=9)).mean(0)
        for head in model.heads.values():
            head.bias -= shift  # type: ignore[operator]
    return victim


@pytest.fixture
def few_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of `auto` that are about something else than who falls to Square."""
    ask_square_little(monkeypatch)


def ask_square_little(patch: pytest.MonkeyPatch) -> None:
    for module in (assurance, attack, blind):
        patch.setattr(module, "QUERIES", 40)


@pytest.fixture
def toy() -> Victim:
    return tiny_vit()


@pytest.fixture
def toy_images() -> tuple[Tensor, Tensor]:
    """Images labelled with the toy's own predictions, so that all of them are attacked."""
    x = toy_pictures()
    with torch.no_grad():
        return x, tiny_vit()(x).argmax(1)


# Read once, since the commands under test must not find it in their environment.
CIFAR10 = os.environ.get("VITATTACK_DATA_DIR")


@pytest.fixture
def cifar10_dir() -> Path:
    """All of CIFAR-10 in the hub's layout; skips if the machine does not have it."""
    folder = CIFAR10
    if not folder:
        pytest.skip("VITATTACK_DATA_DIR names no folder with the hub's CIFAR-10 files")
    return Path(folder)


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack in the process of the test unless it asks for jobs, on a machine with any number of cores."""

    def in_this_process(*about: Any) -> Workers:
        return alone(about[-1])

    monkeypatch.setattr("vitattack.evaluation.evaluate.decided", in_this_process)


@pytest.fixture(autouse=True)
def no_environment() -> Iterator[None]:
    """Hide options set in the developer's shell from the commands under test, and what commands set from later tests."""
    before = dict(os.environ)
    for name in before:
        if name.startswith("VITATTACK_") and name != "VITATTACK_JOBS":
            del os.environ[name]
    yield
    for name in set(os.environ) - set(before) - {"PYTEST_CURRENT_TEST"}:
        del os.environ[name]
    os.environ.update({name: text for name, text in before.items() if name != "PYTEST_CURRENT_TEST"})
