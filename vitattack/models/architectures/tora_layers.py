"""Additions of TORA-ViT to a block: bottleneck adapters, and the gates that weigh two of them against each other."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitattack.core.errors import UsageError

Side = Literal["acc", "rob"]
Weighing = Literal["mean", "sum", "attention", "diagonal"]
Residual = Literal["gated", "block", "none"]
Forced = Literal["learned", "acc", "rob"]
SIDES: tuple[Side, Side] = get_args(Side)


class Adapter(nn.Module):
    """Bottleneck that adds to its input what it finds there (Houlsby et al., ICML 2019); it begins as the identity."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.down = nn.Linear(dim, width)
        self.up = nn.Linear(width, dim)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.up(F.gelu(self.down(x)))
        return out


class Gate(nn.Module):
    """Softmax over the two adapters, element by element, from the difference of their scores.

    Over two entries a softmax is a sigmoid of their difference; the gate of the robustness adapter is one minus this one.
    """

    forced: Forced = "learned"

    def forward(self, difference: Tensor) -> Tensor:
        if self.forced == "learned":
            return difference.sigmoid()
        return torch.full_like(difference, float(self.forced == "acc"))


class GatedFusion(nn.Module):
    """Attention from the block's feature to the features of both adapters, whose weights are gates between the two.

    Queries come from the block, keys and values from each adapter by the same maps. With N keys a row of gates sums to
    N over both adapters: `mean` divides by N, `sum` does not, `attention` multiplies each gate with an ordinary softmax
    over the keys, and `diagonal` compares every token with its own two adapters alone (AdapterFusion, Pfeiffer et al.,
    EACL 2021). Values begin at zero, so that a new fusion leaves the block's feature as it is.
    """

    def __init__(self, dim: int, weighing: Weighing = "mean", residual: Residual = "gated") -> None:
        super().__init__()
        self.weighing, self.residual = weighing, residual
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim, bias=False)  # a bias would cancel in the softmax
        self.value = nn.Linear(dim, dim)
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)
        self.gate = Gate()

    def forward(self, z: Tensor, acc: Tensor, rob: Tensor) -> Tensor:
        """Fuse (B, N, D) with two streams (B, M, D), whose last N rows are the adapters of the rows of z."""
        rows = z.shape[1]
        own_acc, own_rob = acc[:, -rows:], rob[:, -rows:]
        if self.weighing == "diagonal":
            q, k_acc, k_rob = self.query(z), self.key(own_acc), self.key(own_rob)
            share = gate = self.gate(((q * (k_acc - k_rob)).sum(-1, keepdim=True)) * z.shape[-1] ** -0.5)
            fused = gate * self.value(own_acc) + (1 - gate) * self.value(own_rob)
        else:
            q, k_acc, k_rob = self.query(z) * z.shape[-1] ** -0.5, self.key(acc), self.key(rob)
            gate = self.gate(q @ (k_acc - k_rob).transpose(1, 2))
            share = gate.mean(-1, keepdim=True)
            weights = self._weights(gate, q, k_acc), self._weights(1 - gate, q, k_rob)
            fused = weights[0] @ self.value(acc) + weights[1] @ self.value(rob)
        if self.residual == "gated":
            fused = fused + share * (own_acc - z) + (1 - share) * (own_rob - z)
        out: Tensor = fused if self.residual == "none" else z + fused
        return out

    def _weights(self, gate: Tensor, q: Tensor, k: Tensor) -> Tensor:
        if self.weighing == "sum":
            return gate
        if self.weighing == "mean":
            return gate / gate.shape[-1]
        return gate * (q @ k.transpose(1, 2)).softmax(-1)


def one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse an argument of the architecture that is none of its choices."""
    if value not in choices:
        raise UsageError(f"TORA-ViT takes {name}={'|'.join(choices)}, not {value!r}")
