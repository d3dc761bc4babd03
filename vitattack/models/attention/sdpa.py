"""Arguments of a call of scaled_dot_product_attention, and the scores that its kernel does not expose."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class Sdpa:
    """One call, whose q and mask may be replaced before it runs."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    dropout: float
    causal: bool
    scale: float | None
    rest: dict[str, Any]

    @classmethod
    def of(cls, args: Any, kwargs: Any) -> Sdpa:
        """Read the arguments of a call."""
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        q, k, v = (given.pop(name) for name in names[:3])
        mask, dropout, causal = given.pop("attn_mask", None), given.pop("dropout_p", 0.0), given.pop("is_causal", False)
        return cls(q, k, v, mask, dropout, causal, given.pop("scale", None), given)

    def run(self, func: Any) -> Tensor:
        """Run the call as it is now."""
        scale = {} if self.scale is None else {"scale": self.scale}
        out: Tensor = func(self.q, self.k, self.v, self.mask, self.dropout, self.causal, **scale, **self.rest)
        return out

    def scores(self, dtype: torch.dtype | None = None) -> Tensor:
        """Compute the scores explicitly, masks included."""
        q, k = (self.q, self.k) if dtype is None else (self.q.detach().to(dtype), self.k.detach().to(dtype))
        if self.rest.get("enable_gqa") and k.shape[-3] != q.shape[-3]:
            k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
            self.v = self.v.repeat_interleave(q.shape[-3] // self.v.shape[-3], -3)
        z = q @ k.transpose(-2, -1) * (self.scale if self.scale is not None else 1 / math.sqrt(q.shape[-1]))
        if self.mask is not None:
            z = z.masked_fill(~self.mask, -math.inf) if self.mask.dtype == torch.bool else z + self.mask.to(z.dtype)
        if self.causal:
            z = z.masked_fill(torch.ones_like(z, dtype=torch.bool).triu(1), -math.inf)
        return z

    def exact(self) -> Tensor:
        """Compute the scores in float64."""
        return self.scores(torch.float64)

    def forbidden(self, mask: Tensor | None) -> Tensor | None:
        """Return True where an entry is masked; `mask` is the additive one, if it is known."""
        shape = (*self.q.shape[:-1], self.k.shape[-2])
        forbidden = None
        if self.mask is not None and self.mask.dtype == torch.bool:
            forbidden = (~self.mask).expand(shape)
        elif mask is not None:
            forbidden = (mask != 0).expand(shape)
        if self.causal:
            later = torch.ones(shape, dtype=torch.bool, device=self.q.device).triu(1)
            forbidden = later if forbidden is None else forbidden | later
        return forbidden
