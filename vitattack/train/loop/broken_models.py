"""Checks that a trained model is one: its loss, weights and outputs are numbers, and its weights fit the exported type."""

from __future__ import annotations

import math

import torch

from vitattack.models.victim import Victim, frozen
from vitattack.train.loop.early_stop import AGAINST_NAN
from vitattack.train.loop.reporter import Row
from vitattack.train.loop.training_model import stored_tensor


def fault_of(model: Victim, row: Row, *, half: bool) -> str | None:
    """The fault and fix of a model that must not be exported, or None; equal in every process.

    `row` holds the numbers of its epoch, `half` says whether its weights are stored in float16.
    """
    if not math.isfinite(row["loss"]):
        return f"the loss is NaN or infinite: {AGAINST_NAN}"
    weights = model.model.state_dict()
    for name, tensor in weights.items():
        if not bool(torch.isfinite(tensor).all()):
            return f"the model has NaN or infinite values in {name}: {AGAINST_NAN}"
    if "not_finite" in row:
        return f"the model answers {row['not_finite']:.1%} of the held-out images with NaN or infinity: {AGAINST_NAN}"
    with frozen(model), torch.no_grad():
        if not bool(torch.isfinite(model(model.grey())).all()):
            return f"the model answers a grey image with NaN or infinity: {AGAINST_NAN}"
    for name, tensor in weights.items() if half else ():
        if not bool(torch.isfinite(stored_tensor(tensor, half)).all()):
            return f"values in {name} are too large for float16: use export=fp32"
    return None
