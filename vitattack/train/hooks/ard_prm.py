"""ARD and PRM of "When Adversarial Training Meets Vision Transformers" (Mo et al., NeurIPS 2022).

Both hooks weaken the inner attack of the first epochs: they let a share p = epoch / `epochs` of it through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from vitattack.attacks.base import Attack
from vitattack.attacks.gradient.loop import Gradient
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.base import Attackable
from vitattack.train.hooks.base import Hook, RunState
from vitattack.train.objectives.base import Objective


@dataclass
class Ard(Hook):
    """Attention random dropping: the attack loses the gradient through an attention branch with probability 1 - p.

    Each image draws on its own, in every layer and step.
    """

    epochs: int = 10
    _layers: tuple[str, ...] = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check(self.epochs, "ard")

    def start(self, run: RunState) -> None:
        attention = attention_layers(run.victim, run.plain.grey())
        attention.require("there are no attention branches to drop")
        self._layers = tuple(dict.fromkeys(layer.name for layer in attention.layers))

    def objective(self, objective: Objective, run: RunState) -> Objective:
        share = min(1.0, run.epoch / self.epochs)
        run.numbers["ard"] = share
        _check_single_attack(objective, "ard")
        return objective if share == 1 else DroppingAttention(objective, share, self._layers)


@dataclass
class Prm(Hook):
    """Perturbation random masking: the attack may not change a share 1 - p of the patches.

    `patch` is the side of a patch in pixels; the model's own unless given.
    """

    epochs: int = 10
    patch: int = 0
    _side: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check(self.epochs, "prm")
        if self.patch < 0:
            raise UsageError("prm(patch=...) is the side of a patch in pixels, such as 4")

    def start(self, run: RunState) -> None:
        side = self.patch or _patch_size(run.plain.model)
        if side < 1 or run.plain.input_size % side:
            raise UsageError(f"prm cuts {run.plain.input_size} px images into patches of {side}: give prm(patch=4)")
        self._side = side

    def objective(self, objective: Objective, run: RunState) -> Objective:
        share = min(1.0, run.epoch / self.epochs)
        run.numbers["prm"] = share
        _check_single_attack(objective, "prm")
        return objective if share == 1 else MaskingPatches(objective, share, self._side)


def _patch_size(model: nn.Module) -> int:
    """The side of a timm model's patches, 0 where it has none."""
    size = getattr(getattr(model, "patch_embed", None), "patch_size", 0)
    side = size[0] if isinstance(size, tuple | list) else size
    return side if isinstance(side, int) else 0


def _check(epochs: int, name: str) -> None:
    if epochs < 1:
        raise UsageError(f"{name} grows over at least 1 epoch: {name}(epochs=10)")


def _check_single_attack(objective: Objective, name: str) -> None:
    """Refuse attacks made of several: gates and masks have a row for every image, and those ask about some of them."""
    attack = objective.inner_attack
    if attack is not None and not isinstance(attack, Gradient):
        raise UsageError(f"{name} weakens a single gradient attack, not several in one: use inner=pgd(steps=10)")


@dataclass(frozen=True)
class Weakened(Objective):
    """An objective whose attack is held back to a share of its strength; its loss is that of `inner`."""

    inner: Objective
    share: float

    @property
    def inner_attack(self) -> Attack | None:
        return self.inner.inner_attack

    def loss(self, victim: Attackable, x: Tensor, x_adv: Tensor, y: Tensor) -> Tensor:
        return self.inner.loss(victim, x, x_adv, y)

    def limited(self, eps: float) -> Self:
        return replace(self, inner=self.inner.limited(eps))


@dataclass(frozen=True)
class DroppingAttention(Weakened):
    layers: tuple[str, ...]

    def craft(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Tensor:
        with gated(victim, self.layers, self.share, rng.child("ard")):
            return self.inner.craft(victim, x, y, rng=rng)


@contextmanager
def gated(victim: Attackable, layers: tuple[str, ...], share: float, rng: SampleRng) -> Iterator[None]:
    """Let gradients through the named modules for a share of the images only; forwards stay the same."""
    while isinstance(victim, Masked):  # prm wraps first where both are on; layer names are the victim's
        victim = victim.victim
    modules = dict(victim.named_modules())
    passes = dict.fromkeys(layers, 0)

    def hook_of(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            out = output[0] if isinstance(output, tuple) else output
            if not out.requires_grad:
                return
            passes[name] += 1
            drawn = rng.child(name, passes[name]).uniform(torch.empty(len(rng), 1, device=out.device))[:, 0]
            # rows of one image (windows, folded heads) are adjacent
            gate = (drawn < share).repeat_interleave(len(out) // len(rng)).view(-1, *[1] * (out.dim() - 1))
            out.register_hook(lambda grad: grad * gate)

        return hook

    handles = [modules[name].register_forward_hook(hook_of(name)) for name in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@dataclass(frozen=True)
class MaskingPatches(Weakened):
    patch: int

    def craft(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Tensor:
        mask = patch_mask(x, self.patch, self.share, rng.child("prm"))
        x_adv = self.inner.craft(Masked(victim, x, mask), x, y, rng=rng)
        return torch.where(mask, x_adv, x)


def patch_mask(x: Tensor, patch: int, share: float, rng: SampleRng) -> Tensor:
    """(B, 1, H, W): True in a random share of the patches of each image."""
    rows, cols = x.shape[-2] // patch, x.shape[-1] // patch
    order = rng.uniform(x.new_empty(len(x), rows * cols)).argsort(1).argsort(1)
    chosen = (order < round(share * rows * cols)).view(-1, 1, rows, cols)
    return chosen.repeat_interleave(patch, 2).repeat_interleave(patch, 3)


class Masked(Attackable):
    """A view that sees the perturbation inside the mask only; it is its own judge, since training sees no more either."""

    def __init__(self, victim: Attackable, x: Tensor, mask: Tensor) -> None:
        super().__init__()
        self.victim, self.x, self.mask = victim, x, mask

    def forward(self, x_adv: Tensor) -> Tensor:
        logits: Tensor = self.victim(torch.where(self.mask, x_adv, self.x))
        return logits
