"""Gradient clipping."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from vitattack.core.errors import UsageError
from vitattack.train.hooks.base import Hook, RunState


@dataclass
class GradClip(Hook):
    """Clip gradients to `norm`, and log their norms before clipping."""

    norm: float = 1.0
    _norms: dict[str, float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.norm) and self.norm > 0):
            raise UsageError("grad_clip takes a positive norm: grad_clip(1.0)")

    def before_step(self, run: RunState) -> None:
        norm = float(nn.utils.clip_grad_norm_(run.victim.parameters(), self.norm))
        norms = self._norms
        self._norms = {
            "count": norms.get("count", 0) + 1,
            "sum": norms.get("sum", 0.0) + norm,
            "max": max(norms.get("max", 0.0), norm),
        }

    def after_epoch(self, run: RunState) -> Mapping[str, float]:
        norms, self._norms = self._norms, {}
        if not norms:
            return {}
        return {"grad_norm": norms["sum"] / norms["count"], "grad_norm_max": norms["max"]}

    def state_dict(self) -> dict[str, Any]:
        return dict(self._norms)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._norms = dict(state)
