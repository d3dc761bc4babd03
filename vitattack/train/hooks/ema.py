"""Exponential moving average of the weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from vitattack.core.errors import UsageError
from vitattack.models.base import Attackable
from vitattack.train.hooks.base import Hook, RunState


@dataclass
class Ema(Hook):
    """Exponential moving average of the weights, probed and exported in their place.

    A plain copy for the first `warmup` share of all steps; t steps later its decay is the smaller of `decay` and
    (1 + t) / (10 + t). Buffers are copied.
    """

    decay: float = 0.995
    warmup: float = 0.025
    _average: Attackable | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not (0 <= self.decay < 1 and 0 <= self.warmup < 1):
            raise UsageError("ema takes a decay and a warmup share, both from 0 to below 1: ema(0.995)")

    def start(self, run: RunState) -> None:
        self._average = copy.deepcopy(run.victim).requires_grad_(False).eval()

    @torch.no_grad()
    def after_step(self, run: RunState) -> None:
        assert self._average is not None
        since = run.step - int(self.warmup * run.epochs * run.steps)
        decay = min(self.decay, (1 + since) / (10 + since)) if since >= 0 else 0.0
        for average, value in zip(self._average.parameters(), run.victim.parameters(), strict=True):
            average.lerp_(value, 1 - decay)
        for copied, buffer in zip(self._average.buffers(), run.victim.buffers(), strict=True):
            copied.copy_(buffer)

    def averaged(self, run: RunState) -> Attackable | None:
        return self._average

    def state_dict(self) -> dict[str, Any]:
        assert self._average is not None
        return dict(self._average.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        assert self._average is not None
        self._average.load_state_dict(state)
