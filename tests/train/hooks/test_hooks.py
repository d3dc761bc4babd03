"""Hooks against values computed by hand on a model of sixteen numbers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.train.small_runs import affine, run_state
from vitattack.attacks import attack_text
from vitattack.core.errors import UsageError
from vitattack.threats.lp import LpBall
from vitattack.train import recipe_parts  # noqa: F401  # registers the kinds
from vitattack.train.hooks.base import CraftedBatch, Hook
from vitattack.train.hooks.ema import Ema
from vitattack.train.hooks.eps_warmup import EpsWarmup
from vitattack.train.hooks.grad_clip import GradClip
from vitattack.train.objectives.base import Objective
from vitattack.train.objectives.pgd_at import AdversarialCrossEntropy

X = torch.rand(5, 3, 1, 1, generator=torch.Generator().manual_seed(1))
Y = torch.tensor([0, 1, 2, 3, 0])


def hook(text: str) -> Hook:
    made: Hook = attack_text.parse_part(text, Hook, LpBall("linf", 8 / 255))[0]
    return made


def weights(victim: torch.nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in victim.parameters()]


def test_awp_moves_weights_by_gamma_of_their_norm_up_the_loss() -> None:
    victim = affine()
    run, awp = run_state(victim), hook("awp(gamma=0.01)")
    awp.start(run)
    before = weights(victim)

    def loss() -> Tensor:
        return torch.nn.functional.cross_entropy(victim(X), Y)

    (grad,) = torch.autograd.grad(loss(), victim.model.weight)
    lower = float(loss().detach())
    awp.before_loss(run, CraftedBatch(X, X, Y), loss)
    moved = victim.model.weight.detach() - before[0]
    assert torch.allclose(moved, 0.01 * before[0].norm() * grad / grad.norm(), atol=1e-7)
    assert torch.equal(victim.model.bias, before[1])
    assert float(loss().detach()) > lower
    assert all(p.grad is None for p in victim.parameters())
    awp.restore(run)
    assert all(torch.equal(a, b) for a, b in zip(weights(victim), before, strict=True))


def test_awp_keeps_the_step_that_was_made_at_the_perturbed_weights() -> None:
    victim = affine()
    run, awp = run_state(victim), hook("awp(gamma=0.1)")
    before = weights(victim)

    def loss() -> Tensor:
        return torch.nn.functional.cross_entropy(victim(X), Y)

    awp.before_loss(run, CraftedBatch(X, X, Y), loss)
    loss().backward()
    grad = victim.model.weight.grad.clone()
    run.optimiser.step()
    awp.restore(run)
    assert torch.allclose(victim.model.weight, before[0] - 0.1 * grad, atol=1e-6)


def test_awp_waits_for_its_epoch_and_names_what_it_cannot_find() -> None:
    victim = affine()
    run = run_state(victim, epoch=1)
    before = weights(victim)
    hook("awp(warmup=2)").before_loss(run, CraftedBatch(X, X, Y), lambda: victim(X).sum())
    assert torch.equal(victim.model.weight, before[0])
    with pytest.raises(UsageError, match="finds no parameter"):
        hook("awp(only='kernel')").start(run)
    with pytest.raises(UsageError, match="not a regular expression"):
        hook("awp(only='(')")


def test_the_mean_is_a_copy_first_and_then_follows_the_schedule() -> None:
    victim = affine()
    run = run_state(victim, epochs=10, steps=4)  # 5 % of 40 steps: 2 of warm-up
    ema = Ema(decay=0.2, warmup=0.05)
    ema.start(run)
    wanted = weights(victim)[0]
    for step, decay in enumerate([0.0, 0.0, 1 / 10, 2 / 11, 0.2, 0.2]):  # 3/12 is above 0.2
        run.step = step
        with torch.no_grad():
            victim.model.weight += 1.0 + step
        ema.after_step(run)
        wanted = decay * wanted + (1 - decay) * victim.model.weight.detach()
        mean = ema.averaged(run)
        assert mean is not None and torch.allclose(mean.model.weight, wanted, atol=1e-5)


def test_the_mean_is_restored_from_its_state() -> None:
    run = run_state(affine())
    first, second = Ema(), Ema()
    first.start(run)
    state = {name: value.clone() for name, value in first.state_dict().items()}
    with torch.no_grad():
        run.victim.model.weight += 1
    second.start(run)
    second.load_state_dict(state)
    assert torch.equal(second.state_dict()["model.weight"], state["model.weight"])


def test_the_budget_grows_by_epochs_and_steps_keep_their_length() -> None:
    warm = EpsWarmup(epochs=10, zero=2)
    assert [warm.eps(4.0, e) for e in (0, 2, 3, 7, 9, 10, 50)] == pytest.approx([0, 0, 0.4, 2, 2.8, 4, 4])
    sine = EpsWarmup(epochs=4, shape="sine")
    assert [sine.eps(1.0, e) for e in (0, 2, 4)] == pytest.approx([0, math.sin(math.pi / 4), 1])
    base = attack_text.parse_part("fgsm(kind=rs, step=1.5)", Objective, LpBall("linf", 0.1))[0]
    made = EpsWarmup(10).objective(base, run_state(affine(), epoch=3))
    assert isinstance(made, AdversarialCrossEntropy)
    assert made.inner.ball.limit == pytest.approx(0.03)  # type: ignore[attr-defined]
    assert made.inner.rule.size * made.inner.ball.eps == pytest.approx(0.15)  # type: ignore[attr-defined]
    assert EpsWarmup(10).objective(base, run_state(affine(), epoch=10)) is base


def test_gradients_are_cut_to_their_norm_and_the_norms_are_logged() -> None:
    victim = affine()
    run, clip = run_state(victim), GradClip(1.0)
    for scale in (100.0, 300.0):
        victim.zero_grad()
        (scale * victim(X).sum()).backward()
        before = torch.cat([p.grad.flatten() for p in victim.parameters()]).norm()
        clip.before_step(run)
        after = torch.cat([p.grad.flatten() for p in victim.parameters()]).norm()
        assert float(after) == pytest.approx(1, rel=1e-4)
    logged = clip.after_epoch(run)
    assert logged["grad_norm_max"] == pytest.approx(float(before), rel=1e-5)
    assert logged["grad_norm"] == pytest.approx(float(before) * 2 / 3, rel=1e-5)
    assert clip.after_epoch(run) == {}


def test_the_scale_of_logits_is_logged() -> None:
    from vitattack.train.data.batch import Batch

    victim = affine()
    run = run_state(victim, batches=lambda count: [Batch(X, Y)] * count)
    row = hook("logit_scale_log").after_epoch(run)
    logits = victim(X).detach()
    assert row["logit_max"] == pytest.approx(float(logits.abs().max()))
    assert row["logit_std"] == pytest.approx(float(logits.std()))


@pytest.mark.parametrize("text", ["ema(1)", "eps_warmup(0)", "eps_warmup(2, zero=2)", "grad_clip(0)", "awp(gamma=0)"])
def test_settings_out_of_range_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=text.partition("(")[0]):
        hook(text)
