"""PGD against torchattacks' PGD: the same images from the same start, and never a weaker verdict."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from vitattack.attacks.gradient.loop import Gradient
from vitattack.attacks.gradient.steps import Steepest
from vitattack.core.rng import SampleRng
from vitattack.data import load_data
from vitattack.models.victim import Victim
from vitattack.models.zoo.load import load_model
from vitattack.threats.lp import LpBall

torchattacks = pytest.importorskip("torchattacks", reason="a peer: make test installs it")
EPS, SEED = 8 / 255, 7


class TheirStart:
    """The uniform start that torchattacks draws from the global generator after manual_seed(SEED)."""

    passes = 0

    def __call__(self, ball: LpBall, x: Tensor, *, victim: nn.Module, rng: SampleRng) -> Tensor:
        generator = torch.Generator().manual_seed(SEED)
        return (x + torch.empty_like(x).uniform_(-EPS, EPS, generator=generator)).clamp(0, 1)


@pytest.fixture(scope="module", params=[16, pytest.param(64, marks=pytest.mark.slow)])
def images(request: pytest.FixtureRequest) -> tuple[Tensor, Tensor]:
    data = load_data("cifar10-demo")
    x, y = data.read(data.rows[: request.param])
    return x.double(), y


@pytest.fixture(scope="module")
def victim() -> Victim:
    return load_model("tiny-vit", torch.device("cpu")).victim.double()


@pytest.fixture(scope="module")
def theirs(victim: Victim, images: tuple[Tensor, Tensor]) -> Tensor:
    state = torch.get_rng_state()
    torch.manual_seed(SEED)
    x_adv: Tensor = torchattacks.PGD(victim, eps=EPS, alpha=2 / 255, steps=20)(*images)
    torch.set_rng_state(state)
    return x_adv.detach()


def test_pgd_20_gives_the_images_of_torchattacks(victim: Victim, images: tuple[Tensor, Tensor], theirs: Tensor) -> None:
    x, y = images
    ours = Gradient(LpBall("linf", EPS), 20, Steepest(0.25), start=TheirStart(), stop="never")
    x_adv = ours(victim, x, y, rng=SampleRng(0, tuple(range(len(x))))).x_adv
    difference = (x_adv - theirs).abs()
    assert float(difference.max()) <= 1e-6


def test_stopping_at_the_first_success_is_never_weaker(
    victim: Victim, images: tuple[Tensor, Tensor], theirs: Tensor
) -> None:
    x, y = images
    ours = Gradient(LpBall("linf", EPS), 20, Steepest(0.25), start=TheirStart())
    x_adv = ours(victim, x, y, rng=SampleRng(0, tuple(range(len(x))))).x_adv
    with torch.no_grad():
        robust = victim(x_adv).argmax(1) == y
        robust_theirs = victim(theirs).argmax(1) == y
    assert not bool((robust & ~robust_theirs).any())
    assert int(robust.sum()) <= int(robust_theirs.sum())
