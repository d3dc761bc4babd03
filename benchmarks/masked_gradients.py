"""Victims with masked gradients, which an attack must not mistake for robustness."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from torch import Tensor, nn

from vitattack.models.attention.projections import query_rows
from vitattack.models.victim import Victim
from vitattack.models.zoo.file_options import FileOptions
from vitattack.models.zoo.load import load_model

FACTOR, LEVELS = 1e3, 16


class ScaledLogits(nn.Module):
    """A model with its logits multiplied."""

    def __init__(self, model: nn.Module, factor: float) -> None:
        super().__init__()
        self.model, self.factor = model, factor

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        return logits * self.factor


class Quantised(nn.Module):
    """A model behind a quantiser to steps of 1/16, whose gradient is zero."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model((x * LEVELS).round() / LEVELS)
        return logits


def load_masked(text: str, options: FileOptions = FileOptions()) -> Victim:
    """Load the victim of MODEL or MODEL+FAULT; the options are for checkpoint files."""
    model, _, fault = text.partition("+")
    is_file = Path(model).is_file()
    victim = load_model(model, torch.device("cpu"), options if is_file else FileOptions()).victim
    victim.name = Path(model).parent.name if is_file else model
    return mask_gradients(victim, fault) if fault else victim


def mask_gradients(victim: Victim, fault: str) -> Victim:
    """A copy of the victim with one of the faults."""
    if fault == "quantiser":
        return Victim(
            Quantised(victim),
            name=f"{victim.name}+{fault}",
            num_classes=victim.num_classes,
            input_size=victim.input_size,
            channels=victim.channels,
        ).eval()
    victim = copy.deepcopy(victim)
    victim.name += f"+{fault}"
    if fault == "logits":
        victim.model = ScaledLogits(victim.model, FACTOR)
    elif fault == "attention":
        with torch.no_grad():
            for tensor, length in query_rows(victim):
                tensor[:length] *= FACTOR
    else:
        raise SystemExit(f"unknown fault '{fault}': use logits, attention or quantiser")
    return victim.eval()
