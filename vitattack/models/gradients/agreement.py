"""Agreement of two changes: the one that a gradient predicts, and the one that happens."""

from __future__ import annotations

import torch
from torch import Tensor


def agreement(predicted: Tensor, actual: Tensor) -> Tensor:
    """1 where two changes are equal, 0 where one of them is missing or has the other sign."""
    scale = predicted.abs() + actual.abs()
    return torch.where(scale > 0, 1 - (actual - predicted).abs() / scale, 0.0).nan_to_num(0.0)
