"""What may be added to the loop: `awp`, `ema`, `eps_warmup`, `grad_clip`, `logit_scale_log`, and hooks of others.

A hook is a small object made from its text once per run. It keeps what it learns in `state_dict`, which is part of every
checkpoint. The loop calls the hooks in the order of the recipe:

    wrap(victim) -> view                         what is trained and attacked: AAS-AT puts its scales here
    start(run)                                   once, before a checkpoint is read
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
                                                 (into a copy: training goes on with the view)
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from vitattack.core.errors import UsageError
from vitattack.core.registry import Registry
from vitattack.models.victim import Victim, frozen
from vitattack.train.data.batch import Batch
from vitattack.train.loop.distributed import ALONE, Team
from vitattack.train.objectives.objectives import Objective


class Drawn(NamedTuple):
    """A batch as the loss sees it."""

    x: Tensor
    x_adv: Tensor
    y: Tensor


def _no_batches(count: int) -> list[Batch]:
    raise AssertionError("the run has no data")


@dataclass
class Run:
    """What the loop shares with its hooks. `step` counts the optimiser steps that were made before the present one."""

    victim: nn.Module  # the view that is trained and attacked
    plain: Victim  # the victim inside it: normalisation and model
    optimiser: torch.optim.Optimizer
    eps: float  # the final budget
    seed: int
    epochs: int
    steps: int  # per epoch
    epoch: int = 0
    step: int = 0
    team: Team = ALONE
    objective: Objective | None = None  # of this epoch
    numbers: dict[str, float] = field(default_factory=dict)  # logged with this epoch
    batches: Callable[[int], list[Batch]] = _no_batches  # the first N of this epoch, whole, floats on the device


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

    @property
    def looks_between(self) -> bool:
        """Whether it comes between crafting and loss: the two then share no work."""
        return type(self).before_loss is not Hook.before_loss

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
for _name, _target in (
    ("awp", "awp:Awp"),
    ("aas_at", "aas_at:AasAt"),
    ("learned_scales", "aas_at:LearnedScales"),
    ("ard", "vit_at:Ard"),
    ("prm", "vit_at:Prm"),
):
    HOOKS.add(_name, f"vitattack.train.hooks.{_target}")


@HOOKS.register("ema")
@dataclass
class Ema(Hook):
    """A running mean of the weights, probed and exported in their place.

    The mean is a plain copy for the first `warmup` share of all steps; t steps later its decay is the smaller of
    `decay` and (1 + t) / (10 + t). Buffers are copied.
    """

    decay: float = 0.995
    warmup: float = 0.025
    _mean: nn.Module | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not (0 <= self.decay < 1 and 0 <= self.warmup < 1):
            raise UsageError("ema takes a decay and a warmup share, both from 0 to below 1: ema(0.995)")

    def start(self, run: Run) -> None:
        self._mean = copy.deepcopy(run.victim).requires_grad_(False).eval()

    @torch.no_grad()
    def after_step(self, run: Run) -> None:
        assert self._mean is not None
        since = run.step - int(self.warmup * run.epochs * run.steps)
        decay = min(self.decay, (1 + since) / (10 + since)) if since >= 0 else 0.0
        for mean, value in zip(self._mean.parameters(), run.victim.parameters(), strict=True):
            mean.lerp_(value, 1 - decay)
        for copied, buffer in zip(self._mean.buffers(), run.victim.buffers(), strict=True):
            copied.copy_(buffer)

    def averaged(self, run: Run) -> nn.Module | None:
        return self._mean

    def state_dict(self) -> dict[str, Any]:
        assert self._mean is not None
        return dict(self._mean.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        assert self._mean is not None
        self._mean.load_state_dict(state)


@HOOKS.register("eps_warmup")
@dataclass
class EpsWarmup(Hook):
    """The budget grows from zero over the first epochs, steps keep their length (Debenedetti et al., SaTML 2023).

    Epoch e < `epochs` has eps * (e - zero) / epochs, and none in the first `zero` epochs; `sine` bends the line.
    """

    epochs: int = 10
    zero: int = 0
    shape: Literal["linear", "sine"] = "linear"

    def __post_init__(self) -> None:
        if self.epochs < 1 or not 0 <= self.zero < self.epochs:
            raise UsageError("eps_warmup takes at least 1 epoch, and fewer epochs at zero than that: eps_warmup(10)")

    def eps(self, final: float, epoch: int) -> float:
        if epoch >= self.epochs:
            return final
        share = max(0, epoch - self.zero) / self.epochs
        return final * (share if self.shape == "linear" else math.sin(math.pi / 2 * share))

    def objective(self, objective: Objective, run: Run) -> Objective:
        run.numbers["eps"] = eps = self.eps(run.eps, run.epoch)
        return objective if eps == run.eps else objective.limited(eps)


@HOOKS.register("grad_clip")
@dataclass
class GradClip(Hook):
    """Gradients longer than `norm` are cut to it; the norms before that are logged."""

    norm: float = 1.0
    _seen: dict[str, float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.norm) and self.norm > 0):
            raise UsageError("grad_clip takes a positive norm: grad_clip(1.0)")

    def before_step(self, run: Run) -> None:
        norm = float(nn.utils.clip_grad_norm_(run.victim.parameters(), self.norm))
        seen = self._seen
        self._seen = {
            "count": seen.get("count", 0) + 1,
            "sum": seen.get("sum", 0.0) + norm,
            "max": max(seen.get("max", 0.0), norm),
        }

    def after_epoch(self, run: Run) -> Mapping[str, float]:
        seen, self._seen = self._seen, {}
        if not seen:
            return {}
        return {"grad_norm": seen["sum"] / seen["count"], "grad_norm_max": seen["max"]}

    def state_dict(self) -> dict[str, Any]:
        return dict(self._seen)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._seen = dict(state)


@HOOKS.register("logit_scale_log")
@dataclass
class LogitScaleLog(Hook):
    """Logs how large the logits of the epoch's first batch are: deviation, largest, and median gap of the top two.

    Adversarial training lowers all three; a model that hides its gradients behind its softmax raises them.
    """

    def after_epoch(self, run: Run) -> Mapping[str, float]:
        x = run.batches(1)[0].x
        with frozen(run.victim), torch.no_grad():
            logits = run.victim(x)
        top = logits.topk(2, dim=1).values
        return {
            "logit_std": float(logits.std()),
            "logit_max": float(logits.abs().max()),
            "logit_gap": float((top[:, 0] - top[:, 1]).median()),
        }
