"""Contract of hooks: the calls that the training loop makes, and the state it shares with them.

A hook is a small object built from its text once per run. Its state is part of every checkpoint through `state_dict`.
The loop calls the hooks in the order of the recipe:

    wrap(victim) -> view                         the module that is trained and attacked; AAS-AT installs its scales
    start(run)                                   once, before a checkpoint is loaded
    for each epoch:
        objective(objective, run) -> objective   warm-up of the budget, ARD, PRM
        before_epoch(run)                        AAS-AT searches scales
        for each batch:
            before_loss(run, batch, loss)        AWP perturbs the weights; `loss()` is the loss of the batch with a graph
            before_step(run)                     gradients are final, summed over processes: clipping
            restore(run)                         the optimiser has stepped: AWP takes its perturbation back
            after_step(run)                      weights are final: EMA
        after_epoch(run) -> numbers for the log
    averaged(run) -> view or None                weights to probe and export in place of the trained ones: EMA
    plain(view) -> Victim                        a copy of the view without what `wrap` added, equal in its logits
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitattack.models.base import Attackable
from vitattack.models.victim import Victim
from vitattack.train.data.batch import Batch
from vitattack.train.distributed import SINGLE_PROCESS, Processes
from vitattack.train.objectives.base import Objective


class CraftedBatch(NamedTuple):
    """A batch with its adversarial images, as the loss sees it."""

    x: Tensor
    x_adv: Tensor
    y: Tensor


def _untold(what: str, done: int, total: int) -> None:
    """Nobody listens."""


def _no_batches(count: int) -> list[Batch]:
    raise AssertionError("the run has no data")


@dataclass
class RunState:
    """State that the loop shares with its hooks. `step` counts the optimiser steps already made."""

    victim: Attackable  # the view that is trained and attacked
    plain: Victim  # the victim inside it: normalisation and model
    optimiser: torch.optim.Optimizer
    eps: float  # the full budget
    seed: int
    epochs: int
    steps: int  # per epoch
    epoch: int = 0
    step: int = 0
    processes: Processes = SINGLE_PROCESS
    objective: Objective | None = None  # of this epoch
    numbers: dict[str, float] = field(default_factory=dict)  # logged with this epoch
    stage: Callable[[str, int, int], None] = _untold  # told of long stages: what, how much is done, of how much
    batches: Callable[[int], list[Batch]] = _no_batches  # the first N of this epoch, unsharded, floats on the device


class Hook:
    """Base class whose methods do nothing; override what you need."""

    def start(self, run: RunState) -> None: ...

    def wrap(self, victim: Attackable) -> Attackable:
        return victim

    def objective(self, objective: Objective, run: RunState) -> Objective:
        return objective

    def before_epoch(self, run: RunState) -> None: ...

    def before_loss(self, run: RunState, batch: CraftedBatch, loss: Callable[[], Tensor]) -> None: ...

    def before_step(self, run: RunState) -> None: ...

    def restore(self, run: RunState) -> None: ...

    def after_step(self, run: RunState) -> None: ...

    def after_epoch(self, run: RunState) -> Mapping[str, float]:
        return {}

    @property
    def acts_before_loss(self) -> bool:
        """Whether it comes between crafting and loss, which then share no forward."""
        return type(self).before_loss is not Hook.before_loss

    def averaged(self, run: RunState) -> Attackable | None:
        """A copy of `run.victim` with averaged weights; the first hook that has one decides."""
        return None

    def plain(self, view: Attackable) -> Attackable:
        """Undo `wrap` on a copy by folding what it added into the weights; called in the reverse order of `wrap`."""
        return view

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values only."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
