"""Losses with memory or a schedule: GAMA, the two-term losses of PMA and MD, and KL divergence from the clean output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from vitattack.attacks.losses.base import Memory, Moment, best_wrong, of_class
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng


@dataclass(frozen=True)
class GAMA:
    """Margin plus a decaying squared distance from an anchor output (Sriramanan et al., NeurIPS 2020).

    The released code uses probabilities and the output at the noisy start as anchor; the paper describes that at the clean
    image. The distance is weighted by `weight` at first and vanishes after a quarter of the steps.
    """

    space: Literal["prob", "logit"] = "prob"
    anchor: Literal["start", "clean"] = "start"
    weight: float = 50.0

    def __post_init__(self) -> None:
        if self.weight < 0:
            raise UsageError("gama needs a weight of at least 0, such as 50")

    @property
    def needs_clean(self) -> bool:
        return self.anchor == "clean"

    def remember(self, start: Tensor, clean: Tensor | None, y: Tensor, rng: SampleRng) -> Memory:
        return {"anchor": self._scores(start if clean is None else clean).detach()}

    def recall(self, logits: Tensor, y: Tensor, memory: Memory, at: Moment) -> Tensor:
        scores = self._scores(logits)
        weight = self.weight_at(at)
        margin = best_wrong(scores, y) - of_class(scores, y)
        return margin if weight == 0 else margin + weight * (scores - memory["anchor"]).square().sum(1)

    def weight_at(self, at: Moment) -> float:
        """Weight of the distance at a step."""
        return self.weight * max(0.0, 1 - at.t / (0.25 * at.steps))

    def _scores(self, logits: Tensor) -> Tensor:
        return logits.softmax(1) if self.space == "prob" else logits


@dataclass(frozen=True)
class LeadThenMargin:
    """One term of the probability margin for half of the run, then both: the two stages of PMA (Xie et al. 2025).

    `lead` is the term of the first half. The very first step maximises the true class instead, which spreads the starts.
    On logits this is the loss of the margin decomposition attack (Ma et al. 2023).
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


@dataclass(frozen=True)
class KLToClean:
    """KL divergence from the clean output (TRADES, Zhang et al. 2019); its gradient is zero at x itself, so start elsewhere."""

    needs_clean = True

    def remember(self, start: Tensor, clean: Tensor | None, y: Tensor, rng: SampleRng) -> Memory:
        assert clean is not None
        return {"clean": clean.log_softmax(1).detach()}

    def recall(self, logits: Tensor, y: Tensor, memory: Memory, at: Moment) -> Tensor:
        return F.kl_div(logits.log_softmax(1), memory["clean"], reduction="none", log_target=True).sum(1)
