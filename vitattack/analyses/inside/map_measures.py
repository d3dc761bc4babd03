"""Measures of maps over an image, and their means over images with intervals."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from vitattack.analyses.measures.heatmaps import centre_share, entropy, on_mask, spread
from vitattack.records.stats import Z95

MEASURES = {
    "entropy": "entropy, of that of an even map",
    "spread": "distance from its centre, of that of an even map",
    "centre": "share in the middle quarter of the image",
    "on-mask": "share on the object",
    "overlap": "overlap with the object (IoU)",
    "similarity": "correlation with the clean map",
}


class Mean(NamedTuple):
    """A mean over images with its 95 % interval."""

    mean: float
    low: float
    high: float
    n: int

    def text(self) -> str:
        return f"{self.mean:.3f} ±{(self.high - self.low) / 2:.3f}"


def map_numbers(maps: Tensor, masks: Tensor | None) -> dict[str, Tensor]:
    """Every measure of every map."""
    found = {"entropy": entropy(maps), "spread": spread(maps), "centre": centre_share(maps)}
    if masks is not None:
        found["on-mask"], found["overlap"] = on_mask(maps, masks)
    return found


def sums_of(values: Tensor) -> list[float]:
    """How many numbers there are, their sum, and the sum of their squares."""
    known = values[torch.isfinite(values)]
    return [float(len(known)), float(known.sum()), float((known * known).sum())]


def mean_of(count: float, total: float, squares: float) -> Mean:
    """The mean of what `sums_of` added up."""
    mean = total / count
    variance = max(0.0, squares / count - mean * mean) * count / (count - 1) if count > 1 else math.inf
    half = Z95 * math.sqrt(variance / count)
    return Mean(mean, mean - half, mean + half, int(count))
