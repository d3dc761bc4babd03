"""What "When Adversarial Training Meets Vision Transformers" (Mo et al., NeurIPS 2022) does to its inner attack.

Both hooks weaken the attack of the first epochs: a share p of the epoch's number over `epochs` is let through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from vitattack.attacks.gradient.loop import Gradient
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.attention.probe import attention_layers
from vitattack.models.base import Attackable
from vitattack.train.hooks.hooks import Hook, Run
from vitattack.train.objectives.objectives import Objective


@dataclass
class Ard(Hook):
    """Attention random dropping: while attacking, the gradient through an attention branch is dropped with 1 - p.

    Each image draws for itself, in every layer and step.
    """

    epochs: int = 10
    _layers: tuple[str, ...] = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check(self.epochs, "ard")

    def start(self, run: Run) -> None:
        found = attention_layers(run.victim, run.plain.grey())
        found.require("there are no attention branches to drop")
        self._layers = tuple(dict.fromkeys(layer.name for layer in found.layers))

    def objective(self, objective: Objective, run: Run) -> Objective:
        kept = min(1.0, run.epoch / self.epochs)
        run.numbers["ard"] = kept
        _check_whole(objective, "ard")
        return objective if kept == 1 else DroppingAttention(objective, kept, self._layers)


@dataclass
class Prm(Hook):
    """Perturbation random masking: while attacking, the change of a share 1 - p of the patches is nothing.

    `patch` is the side of a patch in pixels, that of the model unless given.
    """

    epochs: int = 10
    patch: int = 0
    _side: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check(self.epochs, "prm")
        if self.patch < 0:
            raise UsageError("prm(patch=...) is the side of a patch in pixels, such as 4")

    def start(self, run: Run) -> None:
        own = getattr(getattr(run.plain.model, "patch_embed", None), "patch_size", 0)
        side = self.patch or (own[0] if isinstance(own, tuple | list) else own)
        if not isinstance(side, int) or side < 1 or run.plain.input_size % side:
            raise UsageError(f"prm cuts {run.plain.input_size} px images into patches of {side}: give prm(patch=4)")
        self._side = side

    def objective(self, objective: Objective, run: Run) -> Objective:
        kept = min(1.0, run.epoch / self.epochs)
        run.numbers["prm"] = kept
        _check_whole(objective, "prm")
        return objective if kept == 1 else MaskingPatches(objective, kept, self._side)


def _check(epochs: int, name: str) -> None:
    if epochs < 1:
        raise UsageError(f"{name} grows over at least 1 epoch: {name}(epochs=10)")


def _check_whole(objective: Objective, name: str) -> None:
    """Gates and masks have a row for every image, and what holds several attacks asks about some of them."""
    while isinstance(objective, Weakened):
        objective = objective.inner
    inner = getattr(objective, "inner", None)
    if inner is not None and not isinstance(inner, Gradient):
        raise UsageError(f"{name} weakens a single gradient attack, and not several in one: use inner=pgd(steps=10)")


@dataclass(frozen=True)
class Weakened:
    """An objective whose attack is held back; its loss is the one of `inner`."""

    inner: Objective
    kept: float

    def loss(self, victim: nn.Module, x: Tensor, x_adv: Tensor, y: Tensor) -> Tensor:
        return self.inner.loss(victim, x, x_adv, y)

    def limited(self, eps: float) -> Self:
        return replace(self, inner=self.inner.limited(eps))


@dataclass(frozen=True)
class DroppingAttention(Weakened):
    layers: tuple[str, ...]

    def craft(self, victim: nn.Module, x: Tensor, y: Tensor, *, rng: SampleRng) -> Tensor:
        with gated(victim, self.layers, self.kept, rng.child("ard")):
            return self.inner.craft(victim, x, y, rng=rng)


@contextmanager
def gated(victim: nn.Module, layers: tuple[str, ...], kept: float, rng: SampleRng) -> Iterator[None]:
    """Outputs of the named modules pass their gradient on for a share `kept` of the images; forwards stay the same."""
    while isinstance(victim, Masked):  # prm comes first where both are asked for, and names are those of the victim
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
            # windows and folded heads lie inside the image
            gate = (drawn < kept).repeat_interleave(len(out) // len(rng)).view(-1, *[1] * (out.dim() - 1))
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

    def craft(self, victim: nn.Module, x: Tensor, y: Tensor, *, rng: SampleRng) -> Tensor:
        mask = patch_mask(x, self.patch, self.kept, rng.child("prm"))
        x_adv = self.inner.craft(Masked(victim, x, mask), x, y, rng=rng)
        return torch.where(mask, x_adv, x)


def patch_mask(x: Tensor, patch: int, kept: float, rng: SampleRng) -> Tensor:
    """(B, 1, H, W): True in a random share `kept` of the patches of each image."""
    rows, cols = x.shape[-2] // patch, x.shape[-1] // patch
    order = rng.uniform(x.new_empty(len(x), rows * cols)).argsort(1).argsort(1)
    chosen = (order < round(kept * rows * cols)).view(-1, 1, rows, cols)
    return chosen.repeat_interleave(patch, 2).repeat_interleave(patch, 3)


class Masked(Attackable):
    """A view that sees the perturbation inside the mask only. It judges itself: training sees no more of it, either."""

    def __init__(self, victim: nn.Module, x: Tensor, mask: Tensor) -> None:
        super().__init__()
        self.victim, self.x, self.mask = victim, x, mask

    def forward(self, x_adv: Tensor) -> Tensor:
        logits: Tensor = self.victim(torch.where(self.mask, x_adv, self.x))
        return logits
