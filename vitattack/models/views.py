"""Views of a victim besides `Rescaled`: other roads to a gradient. None of them speaks for the plain model."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.func import functional_call

from vitattack.models.attention.map import AttentionLayer, AttentionMap, Per, check_scales, shaped
from vitattack.models.attention.rescaled import Rescaled
from vitattack.models.attention.sdpa import Sdpa
from vitattack.models.attention.tap import AttentionTap, SoftmaxMode
from vitattack.models.victim import Victim


class _View(nn.Module):
    """Asks the plain victim for verdicts, at the price of one more forward."""

    verdict_forwards = 1

    def __init__(self, victim: Victim) -> None:
        super().__init__()
        self.victim = victim

    def verdict(self, x: Tensor, logits: Tensor) -> Tensor:
        with torch.no_grad():
            plain: Tensor = self.victim(x.to(self.victim.mean.dtype))
        return plain


class Alone(nn.Module):
    """A view taken for the model itself: what the scaled-model protocol of the AAS paper attacks and counts on."""

    verdict_forwards = 0

    def __init__(self, view: nn.Module) -> None:
        super().__init__()
        self.view = view

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.view(x)
        return logits

    def verdict(self, x: Tensor, logits: Tensor) -> Tensor:
        return logits


class LogitScaled(nn.Module):
    """A view whose logits are multiplied: no prediction changes, losses that mind the scale of logits do."""

    def __init__(self, view: Rescaled, factor: Tensor) -> None:
        super().__init__()
        self.view, self.factor = view, factor
        self.verdict_forwards = view.verdict_forwards

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.view(x) * self.factor
        return logits

    def verdict(self, x: Tensor, logits: Tensor) -> Tensor:
        return self.view.verdict(x, logits)


class Averaged(_View):
    """Asks a random model `answers` times: (n, B, C), for losses averaged over its noise (EOT, Athalye et al. 2018)."""

    def __init__(self, victim: Victim, answers: int) -> None:
        super().__init__(victim)
        self.answers = answers
        self.num_classes = victim.num_classes

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.victim(x) for _ in range(self.answers)])


class Double(_View):
    """The same function in double precision: the arbiter of what is a numerical artefact."""

    def __init__(self, victim: Victim) -> None:
        super().__init__(victim)
        named = [*victim.named_parameters(), *victim.named_buffers()]
        self._state = {name: t.detach().double() if t.is_floating_point() else t for name, t in named}

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = functional_call(self.victim, self._state, (x.double(),))
        return logits


class _Unfused(SoftmaxMode):
    """Fused attention as the products and the softmax it stands for: in bfloat16 its backward is slow on CPUs."""

    def softmax(self, call: int, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        given = Sdpa.of(args, kwargs) if name == "scaled_dot_product_attention" else None
        if given is None or given.dropout:
            return func(*args, **kwargs)
        return given.scores().softmax(-1) @ given.v


class Half(nn.Module):
    """The victim in bfloat16. It answers for itself: whoever goes by its verdicts has claims, to be confirmed elsewhere."""

    verdict_forwards = 0

    def __init__(self, victim: Victim) -> None:
        super().__init__()
        self.victim = victim
        self._unfused = victim.mean.device.type == "cpu"

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, dtype=torch.bfloat16), _Unfused() if self._unfused else nullcontext():
            logits: Tensor = self.victim(x)
        return logits.to(x.dtype)

    def verdict(self, x: Tensor, logits: Tensor) -> Tensor:
        return logits


class _ScaledBackward(Function):
    """Softmax forwards; backwards the softmax Jacobian at scaled scores."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward((scores * scale).softmax(-1))
        return scores.softmax(-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (p,) = ctx.saved_tensors
        return p * (grad - (grad * p).sum(-1, keepdim=True)), None


class BackwardOnly(_View):
    """Forward the victim itself, backward as if its attention scores were scaled."""

    def __init__(self, victim: Victim, scales: Tensor, layers: AttentionMap, per: Per = "layer") -> None:
        super().__init__(victim)
        check_scales(layers, scales, per)
        self.scales, self.layers = scales, layers
        self.per: Per = per

    def forward(self, x: Tensor) -> Tensor:
        with AttentionTap(self.layers, weights=self._weights):
            logits: Tensor = self.victim(x)
        return logits

    def _weights(self, layer: AttentionLayer, scores: Tensor) -> Tensor:
        p: Tensor = _ScaledBackward.apply(scores, shaped(self.scales, self.per, layer, scores))
        return p
