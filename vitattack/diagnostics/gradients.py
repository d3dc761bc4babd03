"""What finite precision does to the input gradient: the fp32 one beside the one that fp64 gives of the same model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from vitattack.losses import CrossEntropy, Margin
from vitattack.models.attention import AttentionTap, Seen
from vitattack.models.layers import AttentionLayer, AttentionMap

LossOf = Callable[[Tensor, Tensor], Tensor]


class Agreement:
    """A gradient beside the reference, summed over images."""

    def __init__(self) -> None:
        self.images = self.pixels = self.compared = self.same_sign = self.zero = self.lost = 0
        self.flat = 0  # images whose whole gradient is zero
        self.cosine = 0.0

    def add(self, grad: Tensor, reference: Tensor) -> None:
        grad, reference = grad.double().flatten(1), reference.flatten(1)
        there = reference != 0
        self.images += len(grad)
        self.pixels += grad.numel()
        self.compared += int(there.sum())
        self.same_sign += int((there & (grad.sign() == reference.sign())).sum())
        self.zero += int((grad == 0).sum())
        self.lost += int((there & (grad == 0)).sum())
        self.flat += int((~grad.any(1)).sum())
        self.cosine += float(_cosine(grad, reference).sum())

    def json(self) -> dict[str, float]:
        return {
            "sign_agreement": self.same_sign / max(1, self.compared),
            "cosine": self.cosine / max(1, self.images),
            "zero": self.zero / max(1, self.pixels),
            "lost": self.lost / max(1, self.compared),
            "zero_images": self.flat / max(1, self.images),
        }


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    # Each scaled to 1 first: the squares of tiny gradients underflow even in fp64. Two zero gradients agree.
    a, b = (v / v.abs().amax(1, keepdim=True).clamp_min(1e-300) for v in (a, b))
    both_zero = ~a.any(1) & ~b.any(1)
    return (a * b).sum(1).div((a.norm(dim=1) * b.norm(dim=1)).clamp_min(1e-300)).masked_fill(both_zero, 1.0)


class GradientPanel:
    """Input gradients of the margin (nothing but the model) and of the cross-entropy (one more softmax), by precision."""

    def __init__(self, victim: nn.Module, layers: AttentionMap) -> None:
        self._victim, self._layers = victim, layers
        self._exact = copy.deepcopy(victim).double()
        self._losses: dict[str, LossOf] = {"margin": Margin(), "cross_entropy": CrossEntropy()}
        self.fp32 = {name: Agreement() for name in self._losses}
        self.bf16 = {name: Agreement() for name in self._losses}
        self.images = 0
        self._through: list[float] = []
        # per layer: entries of dL/dscores that are zero, and all of them, by head
        self._zero_scores = {n.number: torch.zeros(2, n.heads, dtype=torch.long) for n in layers.layers}

    def add(self, x: Tensor, y: Tensor) -> None:
        self.images += len(x)
        for name, loss in self._losses.items():
            reference = self._gradient(self._exact, x.double(), y, loss, weights=_softmax)
            self.fp32[name].add(self._gradient(self._victim, x, y, loss), reference)
            with torch.autocast(x.device.type, torch.bfloat16):
                half = self._gradient(self._victim, x, y, loss)
            self.bf16[name].add(half, reference)
            if name == "margin":
                without = self._gradient(self._exact, x.double(), y, loss, weights=_constant)
                rest = (reference - without).flatten(1).norm(dim=1)
                self._through += (rest / reference.flatten(1).norm(dim=1).clamp_min(1e-300)).tolist()
        self._scores(x, y)

    def zero_dscores(self, number: int, head: int | None = None) -> float:
        """Share of the entries of dL/dscores that are exactly zero in fp32."""
        counted = self._zero_scores[number]
        zero, total = counted.sum(1).tolist() if head is None else counted[:, head].tolist()
        return float(zero / total) if total else 0.0

    def json(self) -> dict[str, Any]:
        return {
            "n": self.images,
            "margin": {"fp32": self.fp32["margin"].json(), "bf16": self.bf16["margin"].json()},
            "cross_entropy": {"fp32": self.fp32["cross_entropy"].json(), "bf16": self.bf16["cross_entropy"].json()},
            "through_attention": sum(self._through) / max(1, len(self._through)),
        }

    def _gradient(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        loss: LossOf,
        weights: Callable[[AttentionLayer, Tensor], Tensor] | None = None,
    ) -> Tensor:
        x = x.detach().requires_grad_()
        if weights is None:
            logits = model(x)
        else:
            with AttentionTap(self._layers, weights=weights):
                logits = model(x)
        if weights is None and logits.dtype != x.dtype:
            logits = logits.to(x.dtype)
        (grad,) = torch.autograd.grad(loss(logits, y).sum(), x)
        return grad

    def _scores(self, x: Tensor, y: Tensor) -> None:
        """Which entries of dL/dscores are exactly zero in fp32, where a mask does not make them so."""
        seen: dict[int, Seen] = {}
        kept: dict[int, Tensor] = {}

        def see(layer_seen: Seen) -> None:
            seen[layer_seen.layer.number] = layer_seen

        def keep(layer: AttentionLayer, z: Tensor) -> Tensor:
            kept[layer.number] = z
            return z.softmax(-1)

        x = x.detach().requires_grad_()
        with AttentionTap(self._layers, observe=see, weights=keep):
            logits = self._victim(x)
        reached = {number: z for number, z in kept.items() if z.requires_grad}
        grads = torch.autograd.grad(Margin()(logits, y).sum(), list(reached.values()), allow_unused=True)
        for number, grad in zip(reached, grads, strict=True):
            if grad is not None:
                masked = seen[number].masked()
                allowed = torch.ones_like(grad, dtype=torch.bool) if masked is None else ~masked
                zero = seen[number].by_head((grad == 0) & allowed).sum((1, 2))
                self._zero_scores[number] += torch.stack([zero, seen[number].by_head(allowed).sum((1, 2))]).cpu()


def _softmax(layer: AttentionLayer, z: Tensor) -> Tensor:
    # In the dtype of the scores: some models ask for float32 whatever they are given.
    return z.softmax(-1)


def _constant(layer: AttentionLayer, z: Tensor) -> Tensor:
    return z.softmax(-1).detach()
