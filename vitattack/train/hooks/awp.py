"""Adversarial weight perturbation (Wu et al., NeurIPS 2020): gradients taken at worse weights nearby."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from vitattack.core.errors import UsageError
from vitattack.train.hooks.base import CraftedBatch, Hook, RunState


@dataclass
class Awp(Hook):
    """Move each weight up the loss by `gamma` times its own norm before the gradient, and back after the step.

    It perturbs parameters with two or more dimensions whose name matches `only`: position embeddings, tokens, norms and
    biases stay. It starts after `warmup` epochs. Papers: gamma 0.01 for pgd_at, 0.005 after 10 epochs for trades.
    """

    gamma: float = 0.005
    warmup: int = 0
    only: str = "weight"
    _moved: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 < self.gamma < 1:
            raise UsageError("awp(gamma=...) is a share of each weight's norm: above 0 and below 1, such as 0.005")
        try:
            self._pattern = re.compile(self.only)
        except re.error as error:
            raise UsageError(f"awp(only=...) is not a regular expression ({error}): write 'weight'") from error

    def start(self, run: RunState) -> None:
        if not self._chosen(run.victim):
            raise UsageError(f"awp finds no parameter whose name matches '{self.only}': correct only=")

    def before_loss(self, run: RunState, batch: CraftedBatch, loss: Callable[[], Tensor]) -> None:
        """Perturb once per step: a batch cut into pieces uses the perturbation of its first piece."""
        if run.epoch < self.warmup or self._moved:
            return
        chosen = self._chosen(run.victim)
        buffers = [(b, b.clone()) for b in run.victim.buffers()]
        grads = torch.autograd.grad(loss(), list(chosen.values()), allow_unused=True)
        perturbed = {n: (p, g) for (n, p), g in zip(chosen.items(), grads, strict=True) if g is not None}
        run.processes.mean_([g for _, g in perturbed.values()])
        with torch.no_grad():
            for buffer, before in buffers:  # batch statistics count one forward per step
                buffer.copy_(before)
            for name, (weight, grad) in perturbed.items():
                before = weight.clone()
                weight += self.gamma * weight.norm() / (grad.norm() + 1e-20) * grad
                self._moved[name] = (before, weight.clone())

    @torch.no_grad()
    def restore(self, run: RunState) -> None:
        """Take the perturbation back and keep the step; a weight that did not step is restored to the bit."""
        named = dict(run.victim.named_parameters())
        for name, (before, after) in self._moved.items():
            named[name].sub_(after).add_(before)
        self._moved.clear()

    def _chosen(self, module: nn.Module) -> dict[str, Tensor]:
        return {
            name: p
            for name, p in module.named_parameters()
            if p.requires_grad and p.ndim > 1 and self._pattern.search(name)
        }
