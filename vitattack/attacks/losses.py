"""What an attack maximises: one value per sample, higher = better for the attacker.

A loss is a frozen value called with (logits, labels). One that must remember something per sample, such as the class it
aims at or the output at the start of the run, implements `Remembering` instead of being called directly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from vitattack.core.errors import UsageError
from vitattack.core.registry import Registry
from vitattack.core.rng import SampleRng

Memory = Mapping[str, Tensor]


class Moment(NamedTuple):
    """Where in a run the loss is asked: step `t` of `steps`."""

    t: int
    steps: int


@runtime_checkable
class Loss(Protocol):
    def __call__(self, logits: Tensor, y: Tensor) -> Tensor: ...


@runtime_checkable
class Remembering(Protocol):
    """A loss with rows of memory (kept aligned with the survivors by the loop) or a schedule."""

    @property
    def needs_clean(self) -> bool:
        """Whether `remember` wants the logits of the unperturbed images: one more forward pass."""

    def remember(self, start: Tensor, clean: Tensor | None, y: Tensor, rng: SampleRng) -> Memory: ...

    def recall(self, logits: Tensor, y: Tensor, memory: Memory, at: Moment) -> Tensor: ...


AnyLoss = Loss | Remembering

LOSSES: Registry[type[AnyLoss]] = Registry("loss", entry_point_group="vitattack.losses")


def best_wrong(scores: Tensor, y: Tensor) -> Tensor:
    """The largest score of any class but y."""
    return scores.scatter(1, y[:, None], -math.inf).amax(1)


def of_class(scores: Tensor, y: Tensor) -> Tensor:
    return scores.gather(1, y[:, None]).squeeze(1)


def _need_classes(logits: Tensor, least: int, name: str) -> None:
    if logits.shape[1] < least:
        raise UsageError(f"loss '{name}' needs at least {least} classes, the model has {logits.shape[1]}: use margin")


@LOSSES.register("ce")
@dataclass(frozen=True)
class CrossEntropy:
    """Cross-entropy of the true class (Goodfellow et al. 2015; Madry et al. 2018)."""

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits, y, reduction="none")


@LOSSES.register("margin")
@dataclass(frozen=True)
class Margin:
    """Best wrong logit minus the true one, capped at `kappa` (Carlini & Wagner 2017); no cap by default."""

    kappa: float = math.inf

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        return (best_wrong(logits, y) - of_class(logits, y)).clamp_max(self.kappa)


@LOSSES.register("dlr")
@dataclass(frozen=True)
class DLR:
    """The margin over the spread of the top three logits: free of scale and shift (Croce & Hein 2020).

    It is undefined for two classes; with `fallback` the plain margin takes its place there.
    """

    fallback: bool = False

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        if self.fallback and logits.shape[1] < 3:
            return Margin()(logits, y)
        _need_classes(logits, 3, "dlr")
        top = logits.topk(3, dim=1).values
        return (best_wrong(logits, y) - of_class(logits, y)) / (top[:, 0] - top[:, 2] + 1e-12)


@LOSSES.register("pm")
@dataclass(frozen=True)
class ProbabilityMargin:
    """The margin between softmax probabilities (Xie et al., CVPR 2025, the loss of PMA)."""

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        p = logits.softmax(1)
        return best_wrong(p, y) - of_class(p, y)


@LOSSES.register("mifpe")
@dataclass(frozen=True)
class MIFPE:
    """Cross-entropy of logits divided by their own top-two gap, so that it cannot underflow (Yu & Xu, CVPR 2023)."""

    T: float = 1.0

    def __post_init__(self) -> None:
        if self.T <= 0:
            raise UsageError("mifpe needs a positive T")

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        _need_classes(logits, 2, "mifpe")
        top = logits.detach().topk(2, dim=1).values
        gap = (top[:, :1] - top[:, 1:]).clamp_min(1e-12)
        return F.cross_entropy(self.T * logits / gap, y, reduction="none")


@LOSSES.register("gama")
@dataclass(frozen=True)
class GAMA:
    """Margin plus a decaying pull away from an anchor output (Sriramanan et al., NeurIPS 2020).

    The released code works on probabilities and anchors at the noisy start; the paper describes the clean image.
    The pull starts at `weight` and is gone after a quarter of the steps.
    """

    space: Literal["prob", "logit"] = "prob"
    anchor: Literal["start", "clean"] = "start"
    weight: float = 50.0

    def __post_init__(self) -> None:
        if self.weight < 0:
            raise UsageError("gama pulls with a weight of at least 0")

    @property
    def needs_clean(self) -> bool:
        return self.anchor == "clean"

    def remember(self, start: Tensor, clean: Tensor | None, y: Tensor, rng: SampleRng) -> Memory:
        return {"anchor": self._scores(start if clean is None else clean).detach()}

    def recall(self, logits: Tensor, y: Tensor, memory: Memory, at: Moment) -> Tensor:
        scores = self._scores(logits)
        pull = self.pull(at)
        margin = best_wrong(scores, y) - of_class(scores, y)
        return margin if pull == 0 else margin + pull * (scores - memory["anchor"]).square().sum(1)

    def pull(self, at: Moment) -> float:
        return self.weight * max(0.0, 1 - at.t / (0.25 * at.steps))

    def _scores(self, logits: Tensor) -> Tensor:
        return logits.softmax(1) if self.space == "prob" else logits


@LOSSES.register("pm_lead")
@dataclass(frozen=True)
class LeadThenMargin:
    """One term of the probability margin for half of the run, then both: the two stages of PMA (Xie et al. 2025).

    The very first step climbs the true class instead, which spreads the starts; `lead` is the term of the first half.
    On logits it is the loss of the margin decomposition attack (Ma et al. 2023).
    """

    lead: Literal["true", "wrong"] = "true"
    space: Literal["prob", "logit"] = "prob"
    needs_clean = False

    def remember(self, start: Tensor, clean: Tensor | None, y: Tensor, rng: SampleRng) -> Memory:
        return {}

    def recall(self, logits: Tensor, y: Tensor, memory: Memory, at: Moment) -> Tensor:
        scores = logits.softmax(1) if self.space == "prob" else logits
        if at.t == 0:
            return of_class(scores, y)
        if at.t < at.steps / 2:
            return best_wrong(scores, y) if self.lead == "wrong" else -of_class(scores, y)
        return best_wrong(scores, y) - of_class(scores, y)


@LOSSES.register("kl_to")
@dataclass(frozen=True)
class KLToClean:
    """KL divergence from the clean output (Zhang et al. 2019, TRADES). Zero gradient at x itself: start elsewhere."""

    needs_clean = True

    def remember(self, start: Tensor, clean: Tensor | None, y: Tensor, rng: SampleRng) -> Memory:
        assert clean is not None
        return {"clean": clean.log_softmax(1).detach()}

    def recall(self, logits: Tensor, y: Tensor, memory: Memory, at: Moment) -> Tensor:
        return F.kl_div(logits.log_softmax(1), memory["clean"], reduction="none", log_target=True).sum(1)


def wrong_classes(logits: Tensor, y: Tensor) -> Tensor:
    """(B, C - 1) the classes other than y, the most likely first."""
    order = logits.scatter(1, y[:, None], -math.inf).argsort(dim=1, descending=True, stable=True)
    return order[:, : logits.shape[1] - 1]


@dataclass(frozen=True)
class Targeted:
    """Aims at the `rank`-th most likely wrong class of the clean image; -1 is the least likely one."""

    rank: int = 1
    needs_clean = True

    def __post_init__(self) -> None:
        if self.rank == 0:
            raise UsageError("rank 0 is no wrong class: 1 is the runner-up, -1 the least likely class")

    def remember(self, start: Tensor, clean: Tensor | None, y: Tensor, rng: SampleRng) -> Memory:
        assert clean is not None
        wrong = clean.shape[1] - 1
        if abs(self.rank) > wrong:
            raise UsageError(f"rank {self.rank} of {wrong} wrong classes: use 1 to {wrong}, or -1 for the least likely")
        return {"target": wrong_classes(clean, y)[:, self.rank - 1 if self.rank > 0 else self.rank]}

    def recall(self, logits: Tensor, y: Tensor, memory: Memory, at: Moment) -> Tensor:
        return self.towards(logits, y, memory["target"])

    def towards(self, logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
        raise NotImplementedError


@LOSSES.register("ce_targeted")
@dataclass(frozen=True)
class TargetedCrossEntropy(Targeted):
    """Minus the cross-entropy of a target class."""

    def towards(self, logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
        return -F.cross_entropy(logits, target, reduction="none")


@LOSSES.register("margin_targeted")
@dataclass(frozen=True)
class TargetedMargin(Targeted):
    """Target logit minus the true one."""

    def towards(self, logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
        return of_class(logits, target) - of_class(logits, y)


@LOSSES.register("dlr_targeted")
@dataclass(frozen=True)
class TargetedDLR(Targeted):
    """The targeted margin over the spread of the top four logits (Croce & Hein 2020)."""

    def towards(self, logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
        _need_classes(logits, 4, "dlr_targeted")
        top = logits.topk(4, dim=1).values
        spread = top[:, 0] - (top[:, 2] + top[:, 3]) / 2 + 1e-12
        return (of_class(logits, target) - of_class(logits, y)) / spread


@dataclass(frozen=True)
class Aimed:
    """A targeted loss with the class of each sample given, by the index of the sample."""

    loss: Targeted
    target: Mapping[int, int]
    needs_clean = False

    def remember(self, start: Tensor, clean: Tensor | None, y: Tensor, rng: SampleRng) -> Memory:
        return {"target": torch.tensor([self.target[i] for i in rng.index], device=y.device)}

    def recall(self, logits: Tensor, y: Tensor, memory: Memory, at: Moment) -> Tensor:
        return self.loss.towards(logits, y, memory["target"])


def needs_clean(loss: AnyLoss) -> bool:
    return isinstance(loss, Remembering) and loss.needs_clean


def remember(loss: AnyLoss, start: Tensor, clean: Tensor | None, y: Tensor, rng: SampleRng) -> Memory:
    """The rows of memory of a loss; none for a plain one."""
    return loss.remember(start, clean, y, rng) if isinstance(loss, Remembering) else {}


def evaluate(loss: AnyLoss, logits: Tensor, y: Tensor, memory: Memory, at: Moment) -> Tensor:
    """(B,) the loss at one step of a run, plain or remembering; (n, B, C) logits are n answers to be averaged over."""
    if logits.dim() == 3:
        return torch.stack([evaluate(loss, answer, y, memory, at) for answer in logits]).mean(0)
    if isinstance(loss, Remembering):
        return loss.recall(logits, y, memory, at)
    return loss(logits, y)


def one_answer(logits: Tensor) -> Tensor:
    """(B, C) logits, or the mean of (n, B, C): what a view of a random model says on average."""
    return logits.mean(0) if logits.dim() == 3 else logits


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """(B,) the best wrong logit minus the true one, above 0 for a mistake; the lowest number for a broken output."""
    lowest = torch.finfo(logits.dtype).min
    return (best_wrong(logits, y) - of_class(logits, y)).nan_to_num(lowest, lowest, lowest)


def is_correct(logits: Tensor, y: Tensor) -> Tensor:
    """(B,) whether the label is the prediction: what an accuracy counts. An output that is not finite predicts nothing."""
    return _is_finite(logits) & (logits.argmax(1) == y)


def is_fooled(logits: Tensor, y: Tensor) -> Tensor:
    """(B,) whether another class is the prediction: an attack's success, which an output that is not finite never is."""
    return _is_finite(logits) & (logits.argmax(1) != y)


def _is_finite(logits: Tensor) -> Tensor:
    return torch.isfinite(logits).all(1)
