"""Input gradients in fp32 and bf16, compared with those of the same model in fp64.

A model that cannot run in fp64 has its bf16 gradient compared with fp32; one that cannot run in bf16 goes without.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from vitattack.attacks.losses.plain import CrossEntropy, Margin
from vitattack.core.errors import first_line
from vitattack.core.runtime import out_of_memory
from vitattack.models.attention.attention_map import AttentionLayer, AttentionMap
from vitattack.models.attention.tap import AttentionTap, Seen
from vitattack.models.lost_gradients import lost_gradients_named

IMAGES_AT_ONCE = 8
LossOf = Callable[[Tensor, Tensor], Tensor]
WeightsOf = Callable[[AttentionLayer, Tensor], Tensor]
Precision = Literal["fp64", "bf16"]
T = TypeVar("T")


class Agreement:
    """Agreement of a gradient with its reference, summed over images."""

    def __init__(self) -> None:
        self.images = self.pixels = self.compared = self.same_sign = self.zero = self.lost = 0
        self.zero_images = 0  # the whole gradient is zero
        self.cosine = 0.0

    def add(self, grad: Tensor, reference: Tensor) -> None:
        grad, reference = grad.double().flatten(1), reference.flatten(1)
        nonzero = reference != 0
        self.images += len(grad)
        self.pixels += grad.numel()
        self.compared += int(nonzero.sum())
        self.same_sign += int((nonzero & (grad.sign() == reference.sign())).sum())
        self.zero += int((grad == 0).sum())
        self.lost += int((nonzero & (grad == 0)).sum())
        self.zero_images += int((~grad.any(1)).sum())
        self.cosine += float(_cosine(grad, reference).sum())

    def json(self) -> dict[str, float]:
        return {
            "sign_agreement": self.same_sign / max(1, self.compared),
            "cosine": self.cosine / max(1, self.images),
            "zero": self.zero / max(1, self.pixels),
            "lost": self.lost / max(1, self.compared),
            "zero_images": self.zero_images / max(1, self.images),
        }


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    # Each scaled to 1 first: the squares of tiny gradients underflow even in fp64. Two zero gradients agree.
    a, b = (v / v.abs().amax(1, keepdim=True).clamp_min(1e-300) for v in (a, b))
    both_zero = ~a.any(1) & ~b.any(1)
    return (a * b).sum(1).div((a.norm(dim=1) * b.norm(dim=1)).clamp_min(1e-300)).masked_fill(both_zero, 1.0)


class GradientPanel:
    """Input gradients by precision, of the margin (the model alone) and of the cross-entropy (one more softmax)."""

    def __init__(self, victim: nn.Module, layers: AttentionMap) -> None:
        self._victim, self._layers = victim, layers
        self.missing: dict[Precision, str] = {}  # why the model cannot run in a precision
        self._losses: dict[str, LossOf] = {"margin": Margin(), "cross_entropy": CrossEntropy()}
        self.fp32 = {name: Agreement() for name in self._losses}
        self.bf16 = {name: Agreement() for name in self._losses}
        self.images = 0
        self._through: list[float] = []
        # per layer and head: zero entries of dL/dscores and all of them, rows of zeros and all rows
        self._zero_scores = {n.number: torch.zeros(4, n.heads, dtype=torch.long) for n in layers.layers}
        self._exact = self._attempt("fp64", lambda: copy.deepcopy(victim).double())

    def add(self, x: Tensor, y: Tensor) -> None:
        # Few images at a time: the scores of all blocks are held together.
        for at in range(0, len(x), IMAGES_AT_ONCE):
            self._add(x[at : at + IMAGES_AT_ONCE], y[at : at + IMAGES_AT_ONCE])

    def _add(self, x: Tensor, y: Tensor) -> None:
        self.images += len(x)
        for name, loss in self._losses.items():
            with lost_gradients_named(self._victim, x):
                plain = self._gradient(self._victim, x, y, loss)
            exact = self._attempt("fp64", partial(self._in_double, x, y, loss, _softmax))
            reference = plain.double() if exact is None else exact
            if exact is not None:
                self.fp32[name].add(plain, exact)
            half = self._attempt("bf16", partial(self._in_half, x, y, loss))
            if half is not None:
                self.bf16[name].add(half, reference)
            if name == "margin":
                without = self._attempt("fp64", partial(self._in_double, x, y, loss, _constant))
                if without is None:
                    without = self._gradient(self._victim, x, y, loss, _constant).double()
                rest = (reference - without).flatten(1).norm(dim=1)
                self._through += (rest / reference.flatten(1).norm(dim=1).clamp_min(1e-300)).tolist()
        self._scores(x, y)

    def zero_dscores(self, number: int, head: int | None = None) -> float:
        """Share of the entries of dL/dscores that are exactly zero in fp32."""
        counted = self._zero_scores[number]
        zero, total, _, _ = (counted.sum(1) if head is None else counted[:, head]).tolist()
        return float(zero / max(1, total))

    @property
    def dead_dscores(self) -> float:
        """Share of the rows, over all blocks, through which no gradient at all reaches the scores in fp32."""
        _, _, dead, rows = torch.stack([counted.sum(1) for counted in self._zero_scores.values()]).sum(0).tolist()
        return float(dead / max(1, rows))

    def json(self) -> dict[str, Any]:
        def agreements(loss: str) -> dict[str, Any]:
            return {
                "fp32": None if "fp64" in self.missing else self.fp32[loss].json(),
                "bf16": None if "bf16" in self.missing else self.bf16[loss].json(),
            }

        return {
            "n": self.images,
            "margin": agreements("margin"),
            "cross_entropy": agreements("cross_entropy"),
            "dead_dscores": self.dead_dscores,
            "through_attention": sum(self._through) / max(1, len(self._through)),
            **({"missing": dict(self.missing)} if self.missing else {}),
        }

    def _in_double(self, x: Tensor, y: Tensor, loss: LossOf, weights: WeightsOf) -> Tensor:
        assert self._exact is not None  # or fp64 is missing and nothing is attempted in it
        return self._gradient(self._exact, x.double(), y, loss, weights)

    def _in_half(self, x: Tensor, y: Tensor, loss: LossOf) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            return self._gradient(self._victim, x, y, loss)

    def _attempt(self, precision: Precision, work: Callable[[], T]) -> T | None:
        """What is computed in a precision; None, and the reason is kept, if the model cannot run in it."""
        if precision in self.missing:
            return None
        try:
            return work()
        except (RuntimeError, TypeError) as error:
            if out_of_memory(error):
                raise
            self.missing[precision] = first_line(error)
            return None

    def _gradient(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        loss: LossOf,
        weights: WeightsOf | None = None,
    ) -> Tensor:
        x = x.detach().requires_grad_()
        if weights is None:
            logits = model(x)
        else:
            with AttentionTap(self._layers, replacement=weights):
                logits = model(x)
        if weights is None and logits.dtype != x.dtype:
            logits = logits.to(x.dtype)
        (grad,) = torch.autograd.grad(loss(logits, y).sum(), x)
        return grad

    def _scores(self, x: Tensor, y: Tensor) -> None:
        """Count entries of dL/dscores that are exactly zero in fp32 though a gradient reaches the weights unmasked."""
        seen: dict[int, Seen] = {}
        scores: dict[int, tuple[Tensor, Tensor]] = {}

        def observe(layer: Seen) -> None:
            seen[layer.layer.number] = layer

        def record(layer: AttentionLayer, z: Tensor) -> Tensor:
            p = z.softmax(-1)
            if z.requires_grad:
                scores[layer.number] = z, p
            return p

        x = x.detach().requires_grad_()
        with AttentionTap(self._layers, observe=observe, replacement=record):
            logits = self._victim(x)
        tensors = [tensor for pair in scores.values() for tensor in pair]
        loss = Margin()(logits, y).sum()
        grads: Sequence[Tensor | None] = torch.autograd.grad(loss, tensors, allow_unused=True)
        for number, dz, dp in zip(scores, grads[::2], grads[1::2], strict=True):
            if dz is None or dp is None:
                continue
            masked = seen[number].masked()
            # Queries whose output nobody reads, such as all but the class token's in a last block, are no evidence.
            counted = (dp != 0).any(-1, keepdim=True) & (torch.ones_like(dz) if masked is None else ~masked).bool()
            zero = (dz == 0) & counted
            rows = counted.any(-1, keepdim=True)
            dead = rows & (zero == counted).all(-1, keepdim=True)
            by_head = [seen[number].by_head(mask).sum((1, 2)) for mask in (zero, counted, dead, rows)]
            self._zero_scores[number] += torch.stack(by_head).cpu()


def _softmax(layer: AttentionLayer, z: Tensor) -> Tensor:
    # In the dtype of the scores: some models ask for float32 whatever they are given.
    return z.softmax(-1)


def _constant(layer: AttentionLayer, z: Tensor) -> Tensor:
    return z.softmax(-1).detach()
