"""APGD against the reference implementation: the same iterates from the same start, in double precision."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.conftest import tiny_vit, toy_pictures
from vitattack.attacks.gradient.apgd import AutoStep, checkpoints
from vitattack.attacks.gradient.loop import Gradient
from vitattack.attacks.gradient.sparse_apgd import SparseAutoStep
from vitattack.attacks.gradient.starts import Edge, Start
from vitattack.attacks.losses.base import AnyLoss, Moment, loss_memory, loss_value
from vitattack.attacks.losses.plain import DLR, CrossEntropy
from vitattack.attacks.losses.targeted import TargetedDLR
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.models.victim import Victim
from vitattack.threats.lp import LpBall
from vitattack.threats.sparse import L1Ball

reference = pytest.importorskip("pyautoattack.autopgd_base")
N = 6
NORMS = {"linf": ("Linf", 2 / 255), "l2": ("L2", 0.2)}
LOSSES: dict[str, AnyLoss] = {"ce": CrossEntropy(), "dlr": DLR(), "dlr-targeted": TargetedDLR(rank=2)}


class Recorder(Attackable):
    """Records the inputs that the victim saw with gradients enabled: the iterates of an attack."""

    def __init__(self, victim: Victim) -> None:
        super().__init__()
        self.victim, self.seen = victim, list[Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            self.seen.append(x.detach().clone())
        logits: Tensor = self.victim(x)
        return logits


@pytest.fixture
def case() -> tuple[Victim, Tensor, Tensor]:
    victim = tiny_vit().double()
    x = toy_pictures(N).double()
    with torch.no_grad():
        return victim, x, victim(x).argmax(1)


def theirs(
    victim: Victim, x: Tensor, y: Tensor, start: Tensor, norm: str, eps: float, loss: str, steps: int
) -> list[Tensor]:
    recorder = Recorder(victim)
    kind = reference.APGDAttack_targeted if loss.endswith("targeted") else reference.APGDAttack
    attack = kind(recorder, n_iter=steps, norm=norm, eps=eps, device=torch.device("cpu"))
    attack.loss = loss
    attack.init_hyperparam(x)
    with torch.no_grad():
        attack.y_target = victim(x).sort(dim=1)[1][:, -3]
    state = torch.get_rng_state()
    torch.set_default_dtype(torch.float64)  # or it would keep step sizes and losses in float32
    try:
        attack.attack_single_run(x, y, x_init=start)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_rng_state(state)
    return recorder.seen


def logits(victim: Victim, points: list[Tensor]) -> tuple[Tensor, ...]:
    """The logits at every iterate, of one forward pass."""
    return victim(torch.cat(points)).chunk(len(points))  # type: ignore[no-any-return]


def value(loss: AnyLoss, logits: Tensor, clean: Tensor, y: Tensor) -> Tensor:
    memory = loss_memory(loss, clean, clean, y, SampleRng(0, tuple(range(N))))
    return loss_value(loss, logits, y, memory, Moment(0, 1))


@pytest.mark.parametrize("steps", [50, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("norm", NORMS)
def test_every_iterate_is_the_reference_one(
    case: tuple[Victim, Tensor, Tensor], norm: str, loss: str, steps: int
) -> None:
    victim, x, y = case
    name, eps = NORMS[norm]
    ball = LpBall(norm, eps)  # type: ignore[arg-type]
    rng = SampleRng(0, tuple(range(N)))
    start = Edge()(ball, x, victim=victim, rng=rng.child("start"))
    expected = theirs(victim, x, y, start, name, eps, loss, steps)
    recorder = Recorder(victim)
    attack = Gradient(ball, steps, AutoStep(), LOSSES[loss], Edge(), stop="never")
    last = attack(recorder, x, y, rng=rng).x_adv
    assert len(expected) == steps + 1 and len(recorder.seen) == steps
    standing = torch.ones(N, dtype=torch.bool)
    points = [*recorder.seen, last]
    with torch.no_grad():
        ours, reached, clean = logits(victim, points), logits(victim, expected), victim(x)
    for step, (one, other) in enumerate(zip(points, expected, strict=True)):
        gap = (one - other).flatten(1).abs().amax(1)
        # at rest two iterates may tie for the best one: their losses differ in the last bit, their pixels by 1e-9
        assert (gap[standing] < 1e-7).all(), f"step {step}: {gap}"
        here, there = (value(LOSSES[loss], found[step], clean, y) for found in (ours, reached))
        assert torch.allclose(here[standing], there[standing], rtol=1e-9, atol=1e-9), f"step {step}"
        # DLR is flat where the true class came third, and normalised rounding errors lead anywhere
        standing &= (reached[step].argmax(1) == y) | (loss == "ce")
    assert int(standing.sum()) >= 2
    moved = (expected[-1] - expected[-2]).flatten(1).abs().amax(1)
    assert float(moved.max()) < 2 * eps  # the step did shrink: the checkpoints were at work


class Given(Start):
    """A start known beforehand."""

    passes = 0

    def __init__(self, points: Tensor) -> None:
        self.points = points

    def __call__(self, ball: LpBall, x: Tensor, *, victim: Attackable, rng: SampleRng) -> Tensor:
        return self.points


@pytest.mark.parametrize("shrinking", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_every_iterate_in_l1_is_the_reference_one(
    case: tuple[Victim, Tensor, Tensor], loss: str, shrinking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the package counts changes as it means to: a change that its projection takes back leaves a rounding error."""
    victim, x, y = case
    ball, steps, recorder = L1Ball("l1", 3.0), 50, Recorder(victim)
    kind = reference.APGDAttack_targeted if loss.endswith("targeted") else reference.APGDAttack
    attack = kind(recorder, n_iter=steps, norm="L1", eps=ball.eps, device=torch.device("cpu"))
    attack.loss = loss
    attack.init_hyperparam(x)
    with torch.no_grad():
        attack.y_target = victim(x).sort(dim=1)[1][:, -3]
    state = torch.get_rng_state()
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)  # they project in float32
        patch.setattr(reference, "L0_norm", lambda change: (change.abs() > 1e-9).flatten(1).sum(1))
        torch.set_default_dtype(torch.float64)
        try:
            torch.manual_seed(3)
            if shrinking:
                attack.decr_eps_pgd(x, y, [9.0, 6.0, 3.0], [15, 15, 20])
            else:
                attack.attack_single_run(x, y)
        finally:
            torch.set_default_dtype(torch.float32)
            torch.set_rng_state(state)
    expected, ours = recorder.seen, Recorder(victim)
    rule = SparseAutoStep(shrinking=shrinking)
    run = Gradient(ball, len(expected) - 1, rule, LOSSES[loss], Given(expected[0]), stop="never")
    last = run(ours, x, y, rng=SampleRng(0, tuple(range(N)))).x_adv
    assert len(expected) == (steps + 3 if shrinking else steps + 1)
    standing = torch.ones(N, dtype=torch.bool)
    for step, (one, other) in enumerate(zip([*ours.seen, last], expected, strict=True)):
        gap = (one - other).flatten(1).abs().amax(1)
        assert (gap[standing] < 1e-7).all(), f"step {step}: {gap}"
        with torch.no_grad():  # as in linf and l2, DLR is flat where the true class came third
            standing &= (victim(other).argmax(1) == y) | (loss == "ce")
    assert int(standing.sum()) >= 2
    sizes = torch.stack([ball.size(x, point) for point in expected])
    assert float(sizes[-1].max()) <= ball.eps * 1.000001
    assert (float(sizes.max()) > 2 * ball.eps) == shrinking


def test_checkpoints_are_those_of_the_paper() -> None:
    assert checkpoints(100) == (22, 41, 57, 70, 80, 87, 93, 99)
    assert len(checkpoints(20)) == 14
    assert checkpoints(1) == (1,)
