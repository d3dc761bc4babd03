"""VDC: gradients of deeper attention and MLPs are added to those of shallower ones, as if blocks were densely connected."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import Function

from vitattack.core.errors import UsageError
from vitattack.models.attention.attention_map import AttentionLayer, AttentionMap
from vitattack.models.blocks.convolutional import blocks_that_add
from vitattack.models.blocks.residual import Block, Removal, Residuals, attention_functions, followed
from vitattack.models.gradient_views.changed import Change, Forward, Images
from vitattack.models.gradient_views.weights_tap import WeightsTap, found_layers, readable_layers, softmax
from vitattack.models.victim import Victim


class _Chain:
    """Gradients at the same place of consecutive blocks: recorded in one backward, added to shallower ones in the next."""

    def __init__(self, count: int, own: float, weight: float, decay: float) -> None:
        self.count, self.own, self.weight, self.decay = count, own, weight, decay
        self.recorded: dict[int, Tensor] = {}
        self.behind: Tensor | None = None  # the gradient behind the last place

    def hook(self, phase: _Phase, number: int) -> Callable[[Tensor], Tensor | None]:
        def changed(grad: Tensor) -> Tensor | None:
            if phase.now == "record":
                self.recorded[number] = grad * self.weight * self.decay ** (self.count - 1 - number)
                return None
            return grad * self.own + self._deeper(number, grad)

        return changed

    def _deeper(self, number: int, grad: Tensor) -> Tensor | float:
        """The sum of what was recorded behind a place, as far as shapes are the same."""
        added: Tensor | float = 0.0
        for deeper in range(number + 1, self.count):
            found = self.recorded.get(deeper)
            if found is None or found.shape != grad.shape:
                return added
            added = added + found
        if self.behind is not None and self.behind.shape == grad.shape:
            added = added + self.behind * self.weight * self.decay
        return added


class _Phase:
    """Which of the two backwards runs."""

    now: Literal["record", "add"] = "record"


class _Dense(Residuals):
    """Hooks the entrances of MLP branches, and what the last block returns."""

    def __init__(
        self, attention: set[str], numbers: Mapping[Removal, int], last: str, chain: _Chain, phase: _Phase
    ) -> None:
        super().__init__(attention=attention)
        self.numbers, self.last, self.chain, self.phase = numbers, last, chain, phase

    def normalised(self, place: Removal, stream: Tensor) -> Tensor:
        if place not in self.numbers or not stream.requires_grad:
            return stream
        entrance = stream.view_as(stream)
        entrance.register_hook(self.chain.hook(self.phase, self.numbers[place]))  # type: ignore[no-untyped-call]
        return entrance

    def block_output(self, block: str, out: Any) -> None:
        tensor = out if isinstance(out, Tensor) else out[0]
        if block != self.last or not tensor.requires_grad:
            return

        def keep(grad: Tensor) -> None:
            if self.phase.now == "record":
                self.chain.behind = grad

        tensor.register_hook(keep)


class _Twice(Function):
    """A forward whose gradient is that of a second backward, for which the first one only records."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, run: Forward, phase: _Phase) -> Tensor:
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.logits = run(ctx.x)
        ctx.phase = phase
        logits: Tensor = ctx.logits.detach()
        return logits

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        ctx.phase.now = "record"
        torch.autograd.grad(ctx.logits, ctx.x, grads[0], retain_graph=True)
        ctx.phase.now = "add"
        (grad,) = torch.autograd.grad(ctx.logits, ctx.x, grads[0])
        ctx.logits = None  # and with it the graph
        return grad, None, None


@dataclass(frozen=True)
class VirtualDense(Change):
    """Attention weights and MLPs pass on a share of their own gradient, and a decaying sum of those behind them."""

    attention_share: float = 0.25
    mlp_share: float = 0.5
    weight: float = 0.1
    decay: float = 0.5
    layers: AttentionMap | None = field(default=None, compare=False, repr=False)
    blocks: tuple[Block, ...] = field(default=(), compare=False, repr=False)
    attention = True
    backwards = 2

    def __post_init__(self) -> None:
        if not all(0 <= factor <= 1 for factor in (self.attention_share, self.mlp_share, self.weight, self.decay)):
            raise UsageError("vdc multiplies gradients by factors from 0 to 1")

    def prepared(self, victim: Victim, images: Images) -> VirtualDense:
        layers = readable_layers(victim, "vdc")
        return replace(self, layers=layers, blocks=blocks_that_add(victim, layers))

    def forward(self, victim: Victim, forward: Forward, x: Tensor) -> Tensor:
        layers = found_layers(self.layers)
        phase = _Phase()
        logits: Tensor = _Twice.apply(x, lambda at: self._hooked(layers, victim, forward, at, phase), phase)
        return logits

    def _hooked(self, layers: AttentionMap, victim: Victim, forward: Forward, x: Tensor, phase: _Phase) -> Tensor:
        maps = _Chain(len(layers), self.attention_share, self.weight, self.decay)

        def weights(layer: AttentionLayer, scores: Tensor) -> Tensor:
            p = softmax(scores)
            if p.requires_grad:
                p.register_hook(maps.hook(phase, layer.number))  # type: ignore[no-untyped-call]
            return p

        names = [block.name for block in self.blocks]
        places = _mlp_places(self.blocks)
        chain = _Chain(len(places), self.mlp_share, self.weight, self.decay)
        mlps = _Dense(attention_functions(layers), places, names[-1] if names else "", chain, phase)
        with ExitStack() as stack:
            stack.enter_context(followed(victim, names, mlps))
            stack.enter_context(WeightsTap(layers, weights))
            return forward(x)


def _mlp_places(blocks: Sequence[Block]) -> dict[Removal, int]:
    """The MLP branches of a model in call order."""
    places = [Removal(block.name, at) for block in blocks for at, kind in enumerate(block.branches) if kind == "mlp"]
    return {place: number for number, place in enumerate(places)}
