"""Adaptive Attention Scaling (CVPR 2024) around any attack, with a referee.

Scales are found once, on calibration images. Test images are attacked plainly and through views with scaled attention; a
success counts if it fools the plain model. Successes by the paper's protocol, whose examples are crafted and judged on
the scaled model, are recorded separately.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from vitattack.attacks.aas.report import referee_section
from vitattack.attacks.aas.scale_search import ScaleSearch, ScaleSet
from vitattack.attacks.base import (
    Attack,
    Calibration,
    Crafted,
    InBall,
    OneInner,
    Traits,
    blank_evidence,
    inherited_traits,
    recall_attack,
    refuse_nesting,
)
from vitattack.attacks.gradient.loop import Gradient
from vitattack.attacks.losses.base import fools, is_correct
from vitattack.attacks.price import Price, PriceQuery
from vitattack.core.errors import UsageError
from vitattack.core.progress import in_stage
from vitattack.core.rng import SampleRng
from vitattack.models.attention.attention_map import AttentionMap
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.attention.rescaled import Rescaled
from vitattack.models.base import Attackable
from vitattack.models.victim import Victim, frozen
from vitattack.models.views import Alone, BackwardOnly, LogitScaled
from vitattack.records.report_section import Run, Section
from vitattack.threats.lp import LpBall


@dataclass(frozen=True)
class ChosenScales:
    """Sets of scales chosen on the calibration images, best first, with the figures behind the choice."""

    scales: tuple[Any, ...]  # nested tuples of floats: (L,) or (L, H) each, one row more where logits are scaled too
    robust: tuple[float, ...] = ()  # robust accuracy of the plain model, by the ranking attack through each set
    plain: float | None = None  # the same without scales
    distances: tuple[tuple[float, ...], ...] = ()
    gradients: tuple[float, ...] = ()


@dataclass(frozen=True)
class AAS(InBall, OneInner):
    """The plain attack, then the attack through each chosen set of scales on the survivors.

    `surrogate` differentiates the scaled model; `backward_only` runs the plain model forwards and scales only the
    softmax Jacobian. The referee costs two more runs with the best scales on all samples: through the view, judged on the
    plain model, and by the protocol of the paper.
    """

    ball: LpBall
    inner: Attack
    search: ScaleSearch
    keep: int = 2
    rank_steps: int = 10
    calibration: int = 32
    mode: Literal["surrogate", "backward_only"] = "surrogate"
    referee: bool = True
    chosen: ChosenScales | None = None
    layers: AttentionMap | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        refuse_nesting(self.inner)
        if min(self.keep, self.rank_steps, self.calibration) < 1:
            raise UsageError("keep, rank_steps and the number of calibration images must be at least 1")

    @property
    def traits(self) -> Traits:
        inner = inherited_traits(self.parts)
        return replace(
            inner,
            plain_only=True,
            calibration="required" if self.search.learns else inner.calibration,
            near_boundary=self.inner.traits.near_boundary,
            attention=True,
        )

    def price(self, query: PriceQuery) -> Price:
        """Price of the plain attack, of the attack through each view and, for the referee, of the paper's protocol."""
        plain = self.inner.price(query)
        through_view = self.inner.price(query.through_view()).more(1)
        price = plain.more(1).plus(through_view.times(min(self.keep, self.search.candidates)))
        return price.plus(plain).more(3) if self.referee and self.mode == "surrogate" else price

    def report(self, run: Run) -> tuple[Section, ...]:
        return referee_section(run)

    # Once per job: the scales.

    def prepare(self, victim: Attackable, calibration: Calibration, *, rng: SampleRng) -> AAS:
        if not isinstance(victim, Victim):
            raise UsageError("attention scales are searched on a Victim: wrap the model first")
        x, y = calibration() if self.search.learns else (victim.mean.new_zeros(0), victim.mean.new_zeros(0))
        if self.search.learns and len(x) == 0:
            raise UsageError("the scale search has no calibration images: give --calibration DATA")
        x, y = x[: self._images()].to(victim.mean), y[: self._images()].to(victim.mean.device)
        layers = self._probe(victim)
        inner = self.inner.prepare(victim, calibration, rng=rng.child("inner"))
        candidates = self.search(victim, layers, x, y, rng=rng)
        ready = replace(self, inner=inner, layers=layers)
        return replace(ready, chosen=ready._rank(victim, candidates, x[: self.calibration], y[: self.calibration], rng))

    def _images(self) -> int:
        return max(self.calibration, self.search.images)

    @staticmethod
    def _probe(victim: Victim) -> AttentionMap:
        layers = attention_layers(victim, victim.grey())
        layers.require("there is nothing to scale")
        return layers

    def _rank(self, victim: Victim, candidates: list[ScaleSet], x: Tensor, y: Tensor, rng: SampleRng) -> ChosenScales:
        """Choose the sets through which a short PGD fools the plain model on most calibration images."""
        robust, plain = [0.0] * len(candidates), None
        if self.search.learns and len(candidates) > 1:
            with frozen(victim), torch.no_grad():
                right = is_correct(victim(x), y)
            cheap = Gradient(self.ball, self.rank_steps)
            stream = SampleRng(rng.seed, tuple(range(len(x)))).child("rank")[right]

            def accuracy(view: Attackable) -> float:
                crafted = cheap(view, x[right], y[right], rng=stream)
                return float((~crafted.evidence["fooled"]).sum()) / len(x)

            plain = accuracy(victim)
            ranked = in_stage("ranking attention scales", candidates)
            robust = [accuracy(self._view(victim, candidate.scales)) for candidate in ranked]
        order = sorted(range(len(candidates)), key=lambda i: robust[i])[: self.keep]
        chosen = [candidates[i] for i in order]
        return ChosenScales(
            scales=tuple(_nested_tuples(candidate.scales) for candidate in chosen),
            robust=tuple(robust[i] for i in order),
            plain=plain,
            distances=tuple(candidate.distances for candidate in chosen),
            gradients=tuple(candidate.gradient for candidate in chosen),
        )

    def learned(self) -> dict[str, Any]:
        """Chosen scales as plain data, and a word about attention that is out of reach."""
        assert self.chosen is not None and self.layers is not None
        coverage = self.layers.coverage()
        unseen = {} if coverage is None else {"coverage": coverage}
        return {"found": vars(self.chosen), "inner": self.inner.learned(), **unseen}

    def recall(self, victim: Attackable, content: dict[str, Any]) -> AAS:
        """Rebuild the prepared attack from stored scales."""
        assert isinstance(victim, Victim)
        chosen = ChosenScales(**{name: _as_tuples(value) for name, value in content["found"].items()})
        inner = recall_attack(self.inner, victim, content["inner"])
        return replace(self, chosen=chosen, inner=inner, layers=self._probe(victim))

    # Per batch.

    def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        if self.chosen is None or self.layers is None:
            raise UsageError("the scales have not been searched: call prepare(victim, calibration, rng=...) first")
        if not isinstance(victim, Victim):
            raise UsageError("attention is scaled on a Victim, not on a view of one: wrap the model first")
        evidence = blank_evidence(x)
        base = self.inner(victim, x, y, rng=rng)
        result = base.x_adv.clone()
        for name in ("forwards", "backwards"):
            evidence[name] += base.evidence[name]
        fooled, extra = self._fooled_plain(victim, x, result, y)
        evidence["forwards"] += extra
        evidence["first_fooled"] = base.evidence["first_fooled"].clone()
        evidence["base_fooled"] = fooled.clone()
        evidence["stage"] = torch.where(fooled, 0, -1)
        views = [self._view(victim, torch.tensor(scales, device=x.device)) for scales in self.chosen.scales]
        if self.referee:
            self._run_referee(victim, views[0], x, y, rng, evidence, result, fooled)
        for number, view in enumerate(views, start=1):
            if number == 1 and self.referee:
                continue  # run by the referee on all samples
            rows = (~fooled).nonzero().flatten()
            if len(rows) == 0:
                break
            self._merge(
                number, self.inner(view, x[rows], y[rows], rng=rng[rows]), rows, victim, x, y, evidence, result, fooled
            )
        evidence["fooled"] = fooled
        return Crafted(result, evidence)

    def _merge(
        self,
        number: int,
        crafted: Crafted,
        rows: Tensor,
        victim: Victim,
        x: Tensor,
        y: Tensor,
        evidence: dict[str, Tensor],
        result: Tensor,
        fooled: Tensor,
    ) -> Tensor:
        """Merge a run through view `number`: add its passes and successes; returns its verdicts on the plain model."""
        for name in ("forwards", "backwards"):
            evidence[name][rows] += crafted.evidence[name]
        success, extra = self._fooled_plain(victim, x[rows], crafted.x_adv, y[rows])
        evidence["forwards"][rows] += extra
        new = success & ~fooled[rows]
        newly_fooled = rows[new]
        result[newly_fooled] = crafted.x_adv[new]
        evidence["first_fooled"][newly_fooled] = crafted.evidence["first_fooled"][new]
        evidence["stage"][newly_fooled] = number
        fooled[newly_fooled] = True
        return success

    def _run_referee(
        self,
        victim: Victim,
        view: Attackable,
        x: Tensor,
        y: Tensor,
        rng: SampleRng,
        evidence: dict[str, Tensor],
        result: Tensor,
        fooled: Tensor,
    ) -> None:
        all_rows = torch.arange(len(x), device=x.device)
        crafted = self.inner(view, x, y, rng=rng)
        evidence["aas_fooled"] = self._merge(1, crafted, all_rows, victim, x, y, evidence, result, fooled)
        if self.mode == "surrogate":
            self._scaled_protocol(victim, view, x, y, rng, evidence)

    def _scaled_protocol(
        self, victim: Victim, view: Attackable, x: Tensor, y: Tensor, rng: SampleRng, evidence: dict[str, Tensor]
    ) -> None:
        """Attack and count on the scaled model, as the paper does, and show the same examples to the plain model."""
        alone = Alone(view)
        with frozen(victim), torch.no_grad():
            clean = is_correct(alone(x), y)
        crafted = self.inner(alone, x, y, rng=rng)
        for name in ("forwards", "backwards"):
            evidence[name] += crafted.evidence[name]
        with frozen(victim), torch.no_grad():
            on_scaled = ~is_correct(alone(crafted.x_adv), y)
        on_plain, extra = self._fooled_plain(victim, x, crafted.x_adv, y)
        evidence["forwards"] += 2 + extra
        evidence["scaled_clean"] = clean
        evidence["scaled_fooled"] = on_scaled
        evidence["scaled_examples_fool_plain"] = on_plain

    def on_misclassified(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> dict[str, Tensor]:
        """Run the paper's protocol on samples that the plain model misclassifies, since it counts them as well."""
        if not self.referee or self.mode != "surrogate" or len(x) == 0:
            return {}
        assert self.chosen is not None and isinstance(victim, Victim)
        evidence = blank_evidence(x)
        view = self._view(victim, torch.tensor(self.chosen.scales[0], device=x.device))
        self._scaled_protocol(victim, view, x, y, rng, evidence)
        return {name: evidence[name] for name in ("scaled_clean", "scaled_fooled", "forwards", "backwards")}

    def _view(self, victim: Victim, scales: Tensor) -> Attackable:
        assert self.layers is not None
        attention, of_logits = scales[: len(self.layers)], scales[len(self.layers) :]
        if self.mode == "backward_only":
            return BackwardOnly(victim, attention, self.layers, self.search.per)
        view = Rescaled(victim, attention, per=self.search.per, layers=self.layers)
        return LogitScaled(view, of_logits.flatten()[0]) if len(of_logits) else view

    def _fooled_plain(self, victim: Victim, x: Tensor, x_adv: Tensor, y: Tensor) -> tuple[Tensor, int]:
        """(B,) successes on the plain model, inside the budget, and the forwards per sample that this took."""
        with frozen(victim), torch.no_grad():
            return fools(victim, x_adv, victim(x_adv), y) & self.ball.allows(x, x_adv), 1


def _nested_tuples(scales: Tensor) -> Any:
    return _as_tuples(scales.detach().cpu().double().tolist())


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(item) for item in value) if isinstance(value, list | tuple) else value
