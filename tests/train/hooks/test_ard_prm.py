"""ARD and PRM: full strength changes nothing, none stops the gradient or the change, and in between the share is right."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.conftest import tiny_vit, toy_pictures
from tests.train.hooks.test_aas_at import run_of
from vitattack.attacks import attack_text
from vitattack.core.errors import UsageError
from vitattack.models.architectures.small import SMALL
from vitattack.models.victim import Victim
from vitattack.threats.base import parse_threat
from vitattack.train import recipe_parts as words  # noqa: F401  - makes the words of recipes known
from vitattack.train.data.batch import Shard, batch_rng
from vitattack.train.hooks.ard_prm import Ard, MaskingPatches, Prm, gated, patch_mask
from vitattack.train.objectives.base import Objective

X, Y = toy_pictures(6), torch.arange(6)


def at() -> Objective:
    made: Objective = attack_text.parse_part("pgd_at(inner=pgd(steps=2))", Objective, parse_threat("linf:8/255"))[0]
    return made


def input_gradient(victim: nn.Module) -> torch.Tensor:
    x = X.clone().requires_grad_()
    return torch.autograd.grad(victim(x).square().sum(), x)[0]


def test_gates_change_gradients_and_never_outputs() -> None:
    victim = tiny_vit()
    layers = ("model.blocks.0.attn", "model.blocks.1.attn")
    rng = batch_rng(0, 0, 0, 6)
    plain, whole = victim(X).detach(), input_gradient(victim)
    with gated(victim, layers, 1.0, rng):
        assert torch.equal(input_gradient(victim), whole)
    with gated(victim, layers, 0.0, rng):
        assert torch.equal(victim(X), plain)
        none = input_gradient(victim)
    # no gradient through attention at all: the one of a model whose attention outputs are constants
    outs = {}
    handles = [victim.get_submodule(name).register_forward_hook(lambda m, a, out: out.detach()) for name in layers]
    cut = input_gradient(victim)
    for handle in handles:
        handle.remove()
    torch.testing.assert_close(none, cut)
    assert not torch.allclose(none, whole) and not outs
    with gated(victim, layers, 0.5, rng):
        half = input_gradient(victim)
    for rank in range(2):
        rows = slice(rank * 3, rank * 3 + 3)
        x = X[rows].clone().requires_grad_()
        with gated(victim, layers, 0.5, batch_rng(0, 0, 0, 6, Shard(rank, 2))):
            part = torch.autograd.grad(victim(x).square().sum(), x)[0]
        torch.testing.assert_close(part, half[rows], rtol=1e-3, atol=1e-4)
    assert torch.equal(input_gradient(victim), whole)  # nothing is left behind


def test_masks_hold_the_exact_share_of_patches() -> None:
    rng = batch_rng(0, 0, 0, 6)
    mask = patch_mask(X, 4, 0.25, rng)
    assert mask.shape == (6, 1, 32, 32)
    patches = mask[:, 0].unfold(1, 4, 4).unfold(2, 4, 4).flatten(3).float().mean(3)
    assert set(patches.unique().tolist()) == {0.0, 1.0}
    assert (patches.flatten(1).sum(1) == 16).all() and not torch.equal(mask[0], mask[1])


@pytest.mark.parametrize(("epoch", "changed"), [(0, 0.0), (1, 0.25), (2, 0.5), (4, 1.0), (7, 1.0)])
def test_prm_lets_a_growing_share_of_patches_change(epoch: int, changed: float) -> None:
    victim = tiny_vit()
    run = run_of(victim)
    run.epoch = epoch
    hook = Prm(epochs=4)
    hook.start(run)
    objective = hook.objective(at(), run)
    rng = batch_rng(0, epoch, 0, 6)
    x_adv = objective.craft(victim, X, Y, rng=rng)
    moved = (x_adv != X).any(1).unfold(1, 4, 4).unfold(2, 4, 4).flatten(3).any(3)
    assert float(moved.float().mean()) == changed and run.numbers["prm"] == changed
    assert float((x_adv - X).abs().max()) <= 8 / 255 + 1e-6
    if changed == 1:
        assert torch.equal(x_adv, at().craft(victim, X, Y, rng=rng))
    torch.testing.assert_close(objective.loss(victim, X, x_adv, Y), at().loss(victim, X, x_adv, Y))
    smaller = objective.limited(2 / 255).craft(victim, X, Y, rng=rng)
    assert float((smaller - X).abs().max()) <= 2 / 255 + 1e-6


def test_ard_grows_to_the_plain_attack() -> None:
    victim = tiny_vit()
    run = run_of(victim)
    hook = Ard(epochs=2)
    hook.start(run)
    rng = batch_rng(0, 0, 0, 6)
    plain = at().craft(victim, X, Y, rng=rng)
    found = []
    for run.epoch in range(3):
        found.append(hook.objective(at(), run).craft(victim, X, Y, rng=rng))
    assert torch.equal(found[2], plain)
    assert not torch.equal(found[0], plain) and not torch.equal(found[1], found[0])


@pytest.mark.parametrize("hook", [Ard(), Prm()])
def test_attacks_that_ask_about_some_of_the_images_are_refused(hook: Ard | Prm) -> None:
    run = run_of(tiny_vit())
    hook.start(run)
    several = attack_text.parse_part("pgd_at(inner=restarts(2, pgd(steps=2)))", Objective, parse_threat("linf:8/255"))[
        0
    ]
    with pytest.raises(UsageError, match=r"a single gradient attack.*inner=pgd"):
        hook.objective(several, run)
    with pytest.raises(UsageError, match=r"a single gradient attack"):
        hook.objective(MaskingPatches(several, 0.5, 4), run)


def test_models_they_do_not_suit_are_refused() -> None:
    cnn = Victim(SMALL["tiny_cnn_32"](width=4), name="cnn", num_classes=10, input_size=32).eval()
    with pytest.raises(UsageError, match="no attention"):
        Ard().start(run_of(cnn))
    with pytest.raises(UsageError, match="patch"):
        Prm().start(run_of(cnn))
    hook = Prm(patch=8)
    hook.start(run_of(cnn))
    with pytest.raises(UsageError):
        Prm(patch=5).start(run_of(cnn))


def test_both_together_craft_the_same_in_either_order() -> None:
    victim = tiny_vit()
    run, rng = run_of(victim), batch_rng(0, 0, 0, 6)
    hooks: list[Ard | Prm] = [Ard(epochs=2), Prm(epochs=2, patch=8)]
    for hook in hooks:
        hook.start(run)
    run.epoch, crafted = 1, []
    for order in (hooks, hooks[::-1], hooks[1:]):
        objective = at()
        for hook in order:
            objective = hook.objective(objective, run)
        crafted.append(objective.craft(victim, X, Y, rng=rng))
    assert torch.equal(crafted[0], crafted[1]) and not torch.equal(crafted[0], crafted[2])
