"""One call of flex_attention, whose scores are changed by its own `score_mod`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitattack.models.attention.scores import BOTTOMLESS

ScoreMod = Callable[..., Tensor]


@dataclass
class Flex:
    """Arguments of a call, whose score_mod may be replaced before it runs."""

    q: Tensor
    k: Tensor
    v: Tensor
    score_mod: ScoreMod
    block_mask: Any
    scale: float
    options: Any
    buffers: tuple[Any, ...]
    mask_buffers: tuple[Any, ...]

    @classmethod
    def of(cls, args: Any, kwargs: Any) -> Flex:
        """Read the arguments of the operator behind flex_attention."""
        names = ("query", "key", "value", "score_mod", "block_mask", "scale", "kernel_options")
        given = {
            **dict(zip((*names, "score_mod_other_buffers", "mask_mod_other_buffers"), args, strict=False)),
            **kwargs,
        }
        buffers = (tuple(given.get(f"{one}_mod_other_buffers", ())) for one in ("score", "mask"))
        return cls(*(given[name] for name in names), *buffers)

    def rescale(self, factors: Tensor) -> None:
        """Multiply the scores, position biases included and masks not, by factors that broadcast over q."""
        inner, table = self.score_mod, factors.expand(*self.q.shape[:2], 1, 1)[..., 0, 0] if factors.dim() else factors

        def scaled(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor, *buffers: Any) -> Tensor:
            z = inner(score, b, h, i, j, *buffers[1:])
            masked = z < BOTTOMLESS
            factor = buffers[0][b, h] if buffers[0].dim() else buffers[0]
            return torch.where(masked, z, torch.where(masked, 0.0, z) * factor)

        self.score_mod, self.buffers = scaled, (table, *self.buffers)

    def run(self, func: Any) -> Any:
        """Run the call as it is now."""
        return func(
            self.q,
            self.k,
            self.v,
            self.score_mod,
            self.block_mask,
            self.scale,
            self.options,
            self.buffers,
            self.mask_buffers,
        )

    def scores(self, dtype: torch.dtype | None = None) -> Tensor:
        """Compute the scores explicitly, masks included."""
        from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

        q, k = (self.q, self.k) if dtype is None else (self.q.detach().to(dtype), self.k.detach().to(dtype))
        z = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(-2, -1) * self.scale
        places = [torch.arange(size, device=z.device) for size in z.shape]
        with TransformGetItemToIndex():
            allowed = _over_rows(self.block_mask[-1], 0, len(self.mask_buffers))(*places, *self.mask_buffers)
            z = _over_rows(self.score_mod, 1, len(self.buffers))(z, *places, *self.buffers)
        return torch.where(allowed, z, -math.inf)

    def explicit(self, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weigh the values; return what the operator returns, its logarithms to base 2."""
        z = self.scores().detach()
        out = p.to(self.v.dtype) @ self.v.repeat_interleave(p.shape[1] // self.v.shape[1], 1)
        return out, z.logsumexp(-1) / math.log(2), z.amax(-1) / math.log(2)


def _over_rows(func: Callable[..., Tensor], scores: int, buffers: int) -> Callable[..., Tensor]:
    """Map a function of one entry over (batch, head, query, key); scores, if it takes any, have all four axes."""
    for at in (3, 2, 1, 0):
        axes = tuple(0 if place == at else None for place in range(4))
        func = torch.vmap(func, in_dims=(0,) * scores + axes + (None,) * buffers)
    return func
