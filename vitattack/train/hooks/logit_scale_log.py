"""Log of the scale of the logits, a sign of gradient masking."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from vitattack.models.victim import frozen
from vitattack.train.hooks.base import Hook, RunState


@dataclass
class LogitScaleLog(Hook):
    """Log the scale of the logits on the epoch's first batch: deviation, largest value, median gap of the top two.

    Adversarial training lowers all three; a model that masks its gradients behind the softmax raises them.
    """

    def after_epoch(self, run: RunState) -> Mapping[str, float]:
        x = run.batches(1)[0].x
        with frozen(run.victim), torch.no_grad():
            logits = run.victim(x)
        top = logits.topk(2, dim=1).values
        return {
            "logit_std": float(logits.std()),
            "logit_max": float(logits.abs().max()),
            "logit_gap": float((top[:, 0] - top[:, 1]).median()),
        }
