"""What may be added to the loop: `awp`, `ema`, `eps_warmup`, `grad_clip`, `logit_scale_log`, and hooks of others.

A hook is a small object made from its text once per run. It keeps what it learns in `state_dict`, which is part of every
checkpoint. The loop calls the hooks in the order of the recipe:

    start(run)                                   once, before a checkpoint is read
    wrap(victim) -> view                         what is trained and attacked: AAS-AT puts its scales here
    for each epoch:
        objective(objective, run) -> objective   eps warm-up, ARD
        before_epoch(run)                        AAS-AT events
        for each batch:
            before_loss(run, batch, loss)        AWP goes up; `loss()` computes the loss of the batch, with a graph
            before_step(run)                     gradients are there, summed over processes: clipping
            restore(run)                         the optimiser has stepped: AWP comes back
            after_step(run)                      the weights are final: EMA
        after_epoch(run) -> numbers for the log
    averaged(run) -> view or None                what is probed and exported in place of the trained view: EMA
    plain(view) -> Victim                        a view without what `wrap` added, equal in its logits: AAS-AT folds
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitattack.registry import Registry
from vitattack.train.batches import Batch, BatchRng
from vitattack.train.objectives import Objective


class Drawn(NamedTuple):
    """A batch as the loss sees it."""

    x: Tensor
    x_adv: Tensor
    y: Tensor


@dataclass
class Run:
    """What the loop shares with its hooks. `step` counts optimiser steps from the start of the run."""

    victim: nn.Module  # the view that is trained and attacked; ends in `plain`
    plain: nn.Module  # the Victim: normalisation and model
    optimiser: torch.optim.Optimizer
    device: torch.device
    seed: int
    epochs: int
    steps: int  # per epoch
    epoch: int = 0
    step: int = 0
    objective: Any = None
    numbers: dict[str, float] = field(default_factory=dict)  # what hooks want logged with this epoch
    batches: Callable[[int], list[Batch]] | None = None  # the first N batches of this epoch, floats on the device
    rng: BatchRng | None = None  # of the present batch

    @property
    def model(self) -> nn.Module:
        """The model alone, without normalisation: its state is what is exported."""
        model: nn.Module = self.plain.model  # type: ignore[assignment]
        return model


class Hook:
    """All methods do nothing; override what you need."""

    def start(self, run: Run) -> None: ...

    def wrap(self, victim: nn.Module) -> nn.Module:
        return victim

    def objective(self, objective: Objective, run: Run) -> Objective:
        return objective

    def before_epoch(self, run: Run) -> None: ...

    def before_loss(self, run: Run, batch: Drawn, loss: Callable[[], Tensor]) -> None: ...

    def before_step(self, run: Run) -> None: ...

    def restore(self, run: Run) -> None: ...

    def after_step(self, run: Run) -> None: ...

    def after_epoch(self, run: Run) -> Mapping[str, float]:
        return {}

    def averaged(self, run: Run) -> nn.Module | None:
        """A copy of `run.victim` with other weights; the first hook that has one decides."""
        return None

    def plain(self, view: nn.Module) -> nn.Module:
        """What `wrap` added, taken off again and worked into the weights; called in the reverse order of `wrap`."""
        return view

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values only."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


HOOKS: Registry[Callable[..., Hook]] = Registry("hook", entry_point_group="vitattack.hooks")
