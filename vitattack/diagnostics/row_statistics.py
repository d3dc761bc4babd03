"""Streaming statistics of attention rows, in memory that does not grow with the number of images."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from vitattack.models.attention.saturation import GAP_BINS, HIGHEST_GAP, LOWEST_GAP, SATURATED_GAP, UNDERFLOW_GAP

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Quantiles are exact up to this many rows of a block, and those of a uniform sample beyond.
KEPT_ROWS = 2**17
ENTRIES_AT_ONCE = 2**22
COUNTS = ("p_max_one", "zero", "subnormal", "dead", "overflow")


def bin_edges() -> Tensor:
    """Edges of the gap histogram, evenly spaced in the logarithm; the outer bins take what lies beyond."""
    return torch.logspace(math.log10(LOWEST_GAP), math.log10(HIGHEST_GAP), GAP_BINS + 1, dtype=torch.float64)


class RowStatistics:
    """Statistics of one block's rows of scores, per head; masked entries are left out."""

    def __init__(self, heads: int, seed: int = 0) -> None:
        self.heads = heads
        self.rows = 0
        self.entries = torch.zeros(heads, dtype=torch.long)
        self.saturated = torch.zeros(heads, dtype=torch.long)
        self.underflow = torch.zeros(heads, dtype=torch.long)
        self.histogram = torch.zeros(heads, GAP_BINS, dtype=torch.long)
        self.entropy = torch.zeros(heads, dtype=torch.float64)
        self.jacobian = torch.zeros(heads, dtype=torch.float64)
        self.gap_max = torch.zeros(heads, dtype=torch.float64)
        self.counts = {dtype: {name: torch.zeros(heads, dtype=torch.long) for name in COUNTS} for dtype in DTYPES}
        self._keep = max(1, KEPT_ROWS // heads)
        self._generator = torch.Generator().manual_seed(seed)
        self._gaps = torch.empty(heads, 0, dtype=torch.float64)
        self._tickets = torch.empty(0, dtype=torch.float64)

    def add(self, z: Tensor, masked: Tensor | None) -> None:
        """(heads, rows, entries) fp64 scores. Rows with fewer than two allowed entries have no gap and are left out."""
        size = max(1, ENTRIES_AT_ONCE // (z.shape[0] * z.shape[2]))
        for at in range(0, z.shape[1], size):
            self._add(z[:, at : at + size], None if masked is None else masked[:, at : at + size])

    def _add(self, z: Tensor, masked: Tensor | None) -> None:
        if masked is not None:
            z = z.masked_fill(masked, -math.inf)
        allowed = (z != -math.inf).sum(-1)
        keep = allowed.amin(0) >= 2
        z, allowed = z[:, keep], allowed[:, keep]
        if z.shape[1] == 0:
            return
        top = z.topk(2, dim=-1).values
        gap = (top[..., 0] - top[..., 1]).cpu()
        self.rows += z.shape[1]
        self.entries += allowed.sum(1).cpu()
        self.saturated += (gap > SATURATED_GAP).sum(1)
        self.underflow += (gap > UNDERFLOW_GAP).sum(1)
        self.gap_max = torch.maximum(self.gap_max, gap.amax(1))
        self._count_bins(gap)
        self._sample(gap)
        p = z.softmax(-1)
        self.entropy -= torch.special.xlogy(p, p).sum((1, 2)).cpu()
        self.jacobian += (1 - p.square().sum(-1)).sum(1).cpu()
        for dtype, counts in self.counts.items():
            for name, value in _weights_in(z, allowed, dtype).items():
                counts[name] += value.cpu()

    def quantile(self, q: float, head: int | None = None) -> float:
        gaps = self._gaps if head is None else self._gaps[head]
        if gaps.numel() == 0:
            return math.nan
        ordered = gaps.flatten().sort().values
        place = q * (len(ordered) - 1)
        below = int(place)
        above = min(below + 1, len(ordered) - 1)
        return float(ordered[below] + (place - below) * (ordered[above] - ordered[below]))

    @property
    def sampled(self) -> bool:
        return self.rows > self._keep

    def summary(self, head: int | None = None) -> dict[str, Any]:
        """Shares over all rows of the block, or of one head."""
        at: Any = slice(None) if head is None else slice(head, head + 1)
        chosen = self.heads if head is None else 1
        rows, entries = self.rows * chosen, int(self.entries[at].sum())

        def share(counted: Tensor, of: int) -> float:
            return float(counted[at].sum()) / of if of else 0.0

        dtypes = {}
        for dtype, counts in self.counts.items():
            dtypes[str(dtype).removeprefix("torch.")] = {
                "p_max_one": share(counts["p_max_one"], rows),
                "zero_weights": share(counts["zero"], entries),
                "subnormal_weights": share(counts["subnormal"], entries),
                "dead_rows": share(counts["dead"], rows),
                "overflow_rows": share(counts["overflow"], rows),
            }
        return {
            "rows": rows,
            "gap_median": self.quantile(0.5, head),
            "gap_p99": self.quantile(0.99, head),
            "gap_max": float(self.gap_max[at].max()),
            "saturated": share(self.saturated, rows),
            "underflow": share(self.underflow, rows),
            "zero_weights": dtypes["float32"]["zero_weights"],
            "entropy": share(self.entropy, rows),
            "jacobian_trace": share(self.jacobian, rows),
            "dtypes": dtypes,
        }

    def _count_bins(self, gap: Tensor) -> None:
        place = torch.bucketize(gap, bin_edges()[1:-1])
        for head in range(self.heads):
            self.histogram[head] += torch.bincount(place[head], minlength=GAP_BINS)

    def _sample(self, gap: Tensor) -> None:
        """Keep a uniform sample of rows, the same in every head: those that draw the lowest tickets."""
        tickets = torch.rand(gap.shape[1], dtype=torch.float64, generator=self._generator)
        self._gaps, self._tickets = torch.cat([self._gaps, gap], 1), torch.cat([self._tickets, tickets])
        if len(self._tickets) > self._keep:
            lowest = self._tickets.topk(self._keep, largest=False).indices
            self._gaps, self._tickets = self._gaps[:, lowest], self._tickets[lowest]


def _weights_in(z: Tensor, allowed: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    """Counts per head of the degenerate weights that the softmax of this dtype gives."""
    scores = z.to(dtype)
    broken = (scores == math.inf).any(-1) | ((z > -math.inf) & (scores == -math.inf)).any(-1)
    p = scores.masked_fill(broken[..., None], 0).softmax(-1)
    forbidden = z.shape[-1] - allowed
    zero = (p == 0).sum(-1) - forbidden
    zero = zero.masked_fill(broken, 0)
    tiny = torch.finfo(dtype).tiny
    one = (p.amax(-1) == 1) & ~broken
    return {
        "p_max_one": one.sum(1),
        "zero": zero.sum(1),
        "subnormal": ((p > 0) & (p < tiny)).sum((1, 2)),
        "dead": (one & (zero == allowed - 1)).sum(1),
        "overflow": broken.sum(1),
    }
