"""Views: modified models that attacks take gradients from. `Rescaled` is in `attention.rescaled`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.func import functional_call

from vitattack.core.errors import UsageError, first_line
from vitattack.core.runtime import out_of_memory
from vitattack.models.attention.attention_map import AttentionLayer, AttentionMap, Per, broadcast_scales, check_scales
from vitattack.models.attention.sample_axes import with_sample_axes
from vitattack.models.attention.sdpa import Sdpa
from vitattack.models.attention.softmax_mode import SoftmaxMode
from vitattack.models.attention.tap import AttentionTap
from vitattack.models.base import Attackable
from vitattack.models.victim import Victim, View


class Alone(Attackable):
    """A view that judges itself: the scaled model that the protocol of the AAS paper attacks and counts on."""

    def __init__(self, view: Attackable) -> None:
        super().__init__()
        self.view = view
        self.num_classes = view.num_classes

    @property
    def is_random(self) -> bool:
        return self.view.is_random

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.view(x)
        return logits


class LogitScaled(Attackable):
    """A view whose logits are multiplied by a factor: predictions stay, losses that depend on the logit scale change."""

    def __init__(self, view: View, factor: Tensor) -> None:
        super().__init__()
        self.view, self.factor = view, factor
        self.num_classes, self.verdict_forwards = view.num_classes, view.verdict_forwards

    @property
    def is_random(self) -> bool:
        return self.view.is_random

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.view(x) * self.factor
        return logits

    def verdict(self, x: Tensor, logits: Tensor) -> Tensor:
        return self.view.verdict(x, logits)

    def verdict_again(self, x: Tensor) -> Tensor:
        return self.view.verdict_again(x)


class Averaged(View):
    """A random model asked `answers` times: (n, B, C), for losses averaged over its noise (EOT, Athalye et al. 2018)."""

    def __init__(self, victim: Victim, answers: int) -> None:
        super().__init__(victim)
        self.answers = answers

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.victim(x) for _ in range(self.answers)])


class UnsuitedPrecision(UsageError):
    """A model that does not run in a precision other than its own."""


@contextmanager
def in_precision(name: str, dtype: str) -> Iterator[None]:
    """Say in one line that a model cannot run in a precision other than its own."""
    try:
        yield
    except RuntimeError as error:
        if out_of_memory(error):
            raise
        raise UnsuitedPrecision(
            f"model '{name}' cannot run in {dtype} ({first_line(error)}): let its forward keep the dtype of its input"
        ) from error


class Double(View):
    """The victim in double precision, which tells numerical artefacts from the model's own gradient."""

    def __init__(self, victim: Victim) -> None:
        super().__init__(victim)
        named = [*victim.named_parameters(), *victim.named_buffers()]
        self._state = {name: t.detach().double() if t.is_floating_point() else t for name, t in named}

    def forward(self, x: Tensor) -> Tensor:
        with in_precision(self.victim.name, "float64"):
            logits: Tensor = functional_call(self.victim, self._state, (x.double(),))
        return logits


class _Unfused(SoftmaxMode):
    """Fused attention as explicit products and softmax: the backward of the fused kernel is slow in bfloat16 on CPUs."""

    def softmax(self, call: int, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        given = Sdpa.of(args, kwargs) if name == "scaled_dot_product_attention" else None
        if given is None or given.dropout:
            return func(*args, **kwargs)
        return given.scores().softmax(-1) @ given.v


class Half(Attackable):
    """The victim in bfloat16. It judges itself, so its successes are claims that the plain victim has yet to confirm."""

    def __init__(self, victim: Victim) -> None:
        super().__init__()
        self.victim = victim
        self.num_classes = victim.num_classes
        self._unfused = victim.mean.device.type == "cpu"

    @property
    def is_random(self) -> bool:
        return self.victim.is_random

    def forward(self, x: Tensor) -> Tensor:
        unfused = _Unfused() if self._unfused else nullcontext()
        with (
            in_precision(self.victim.name, "bfloat16"),
            torch.autocast(x.device.type, dtype=torch.bfloat16),
            unfused,
        ):
            logits: Tensor = self.victim(x)
        return logits.to(x.dtype)


class _ScaledBackward(Function):
    """Plain softmax in the forward pass, the Jacobian of the softmax of scaled scores in the backward pass."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward((scores * scale).softmax(-1))
        return scores.softmax(-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (p,) = ctx.saved_tensors
        return p * (grad - (grad * p).sum(-1, keepdim=True)), None


class BackwardOnly(View):
    """The victim itself in the forward pass, with scaled attention scores in the backward pass."""

    def __init__(self, victim: Victim, scales: Tensor, layers: AttentionMap, per: Per = "layer") -> None:
        super().__init__(victim)
        check_scales(layers, scales, per)
        self.scales = scales
        self.layers = with_sample_axes(layers, victim) if per == "sample" else layers
        self.per: Per = per

    def forward(self, x: Tensor) -> Tensor:
        with AttentionTap(self.layers, replacement=self._softmax):
            logits: Tensor = self.victim(x)
        return logits

    def _softmax(self, layer: AttentionLayer, scores: Tensor) -> Tensor:
        p: Tensor = _ScaledBackward.apply(scores, broadcast_scales(self.scales, self.per, layer, scores))
        return p
