"""The loss protocol, the registry of losses, and the functions of logits that losses and attacks share.

A plain loss is a frozen value called with (logits, labels). One with per-sample memory, such as a target class or an
anchor output, or with a schedule implements `Remembering` instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from vitattack.core.errors import UsageError
from vitattack.core.registry import Registry
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable

Memory = Mapping[str, Tensor]

# Draws of a random victim that an attack takes before it claims a success; one lucky draw must not end a search.
CLAIM_DRAWS = 5


class Moment(NamedTuple):
    """Position in a run: step `t` of `steps`."""

    t: int
    steps: int


@runtime_checkable
class Loss(Protocol):
    """A loss without memory."""

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor: ...


@runtime_checkable
class Remembering(Protocol):
    """A loss with a schedule or with memory, one row per sample; the loop drops the rows of samples that leave."""

    @property
    def needs_clean(self) -> bool:
        """Whether `remember` needs the logits of the clean images, at the cost of one more forward."""

    def remember(self, start: Tensor, clean: Tensor | None, y: Tensor, rng: SampleRng) -> Memory:
        """Create the memory from the logits of the starting points and, if needed, of the clean images."""

    def recall(self, logits: Tensor, y: Tensor, memory: Memory, at: Moment) -> Tensor:
        """(B,) loss at one step of a run."""


AnyLoss = Loss | Remembering

LOSSES: Registry[type[AnyLoss]] = Registry("loss", entry_point_group="vitattack.losses")
# Names in attack texts; modules are imported on first use.
BUILT_IN_LOSSES = {
    "ce": "plain:CrossEntropy",
    "margin": "plain:Margin",
    "dlr": "plain:DLR",
    "pm": "plain:ProbabilityMargin",
    "mifpe": "plain:MIFPE",
    "gama": "remembering:GAMA",
    "pm_lead": "remembering:LeadThenMargin",
    "kl_to": "remembering:KLToClean",
    "ce_targeted": "targeted:TargetedCrossEntropy",
    "margin_targeted": "targeted:TargetedMargin",
    "dlr_targeted": "targeted:TargetedDLR",
}
LOSSES.add_lazily("vitattack.attacks.losses", BUILT_IN_LOSSES)


def best_wrong(scores: Tensor, y: Tensor) -> Tensor:
    """(B,) largest score of any class but y."""
    return scores.scatter(1, y[:, None], -math.inf).amax(1)


def of_class(scores: Tensor, y: Tensor) -> Tensor:
    """(B,) score of class y."""
    return scores.gather(1, y[:, None]).squeeze(1)


def require_classes(logits: Tensor, least: int, name: str) -> None:
    if logits.shape[1] < least:
        raise UsageError(f"loss '{name}' needs at least {least} classes, the model has {logits.shape[1]}: use margin")


def wrong_classes(logits: Tensor, y: Tensor) -> Tensor:
    """(B, C - 1) classes other than y, most likely first."""
    order = logits.scatter(1, y[:, None], -math.inf).argsort(dim=1, descending=True, stable=True)
    return order[:, : logits.shape[1] - 1]


def needs_clean(loss: AnyLoss) -> bool:
    return isinstance(loss, Remembering) and loss.needs_clean


def loss_memory(loss: AnyLoss, start: Tensor, clean: Tensor | None, y: Tensor, rng: SampleRng) -> Memory:
    """Create the memory of a loss; empty for a plain one."""
    return loss.remember(start, clean, y, rng) if isinstance(loss, Remembering) else {}


def loss_value(loss: AnyLoss, logits: Tensor, y: Tensor, memory: Memory, at: Moment) -> Tensor:
    """(B,) loss at one step of a run, averaged over n forwards where logits are (n, B, C)."""
    if logits.dim() == 3:
        return torch.stack([loss_value(loss, answer, y, memory, at) for answer in logits]).mean(0)
    if isinstance(loss, Remembering):
        return loss.recall(logits, y, memory, at)
    return loss(logits, y)


def mean_answer(logits: Tensor) -> Tensor:
    """(B, C) logits, or the mean of the (n, B, C) logits that a view of a random model returns."""
    return logits.mean(0) if logits.dim() == 3 else logits


def logit_margin(logits: Tensor, y: Tensor) -> Tensor:
    """(B,) best wrong logit minus the true one, positive for a mistake; the lowest number where it is not finite."""
    lowest = torch.finfo(logits.dtype).min
    return (best_wrong(logits, y) - of_class(logits, y)).nan_to_num(lowest, lowest, lowest)


def is_correct(logits: Tensor, y: Tensor) -> Tensor:
    """(B,) predictions that equal the label, as counted by an accuracy; an output that is not finite predicts nothing."""
    return _is_finite(logits) & (logits.argmax(1) == y)


def is_fooled(logits: Tensor, y: Tensor) -> Tensor:
    """(B,) predictions of another class, the success of an attack; an output that is not finite is never a success."""
    return _is_finite(logits) & (logits.argmax(1) != y)


def fools(victim: Attackable, x: Tensor, verdict: Tensor, y: Tensor) -> Tensor:
    """(B,) images that fool a victim, given its verdict at x; a random victim has to err in most of `CLAIM_DRAWS` draws.

    Further draws are taken only where the first one errs: `claim_draws` counts them. Passes that an attack does not claim
    are spread over the samples.
    """
    fooled = is_fooled(verdict, y)
    if victim.is_random and bool(fooled.any()):
        rows = fooled.clone()
        with torch.no_grad():
            again = [is_fooled(victim.verdict_again(x[rows]), y[rows]) for _ in range(CLAIM_DRAWS - 1)]
        fooled[rows] = 2 * (1 + torch.stack(again).sum(0)) > CLAIM_DRAWS
    return fooled


def claim_draws(victim: Attackable, verdict: Tensor, y: Tensor) -> Tensor | int:
    """(B,) draws that `fools` takes beyond the first one, 0 of a deterministic victim."""
    return (CLAIM_DRAWS - 1) * is_fooled(verdict, y).long() if victim.is_random else 0


def _is_finite(logits: Tensor) -> Tensor:
    return torch.isfinite(logits).all(1)
