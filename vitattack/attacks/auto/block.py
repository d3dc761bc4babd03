"""A block of samples under `auto`: candidates, evidence, and stages run on chosen rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vitattack.attacks.auto import model_checks
from vitattack.attacks.auto.auto_stage import AutoStage, overhead
from vitattack.attacks.auto.blind import blind_stages
from vitattack.attacks.auto.detours import Chosen, averaged, choose
from vitattack.attacks.auto.numbering import ALL, IN_FP32, LOGITS_ONLY
from vitattack.attacks.base import blank_search
from vitattack.attacks.compose import confirmed
from vitattack.attacks.gradient.fidelity import TRUSTED
from vitattack.attacks.price import PassesPerImage
from vitattack.core.progress import in_stage
from vitattack.core.rng import SampleRng
from vitattack.models.attention.attention_map import AttentionMap
from vitattack.models.attention.rescaled import Rescaled
from vitattack.models.base import Attackable
from vitattack.models.victim import Victim
from vitattack.models.views import Half
from vitattack.threats.lp import LpBall

WATCHED = 16  # first images of a block, probed before any stage


class BlockSettings(NamedTuple):
    """Settings of `auto` that matter to a block."""

    ball: LpBall
    stage_names: tuple[str, ...]
    tail: AutoStage
    chunk: int  # samples per query
    budget: int | None  # passes per sample
    half: bool  # search in bfloat16 where gradients agree


class SampleBlock:
    """Candidates and evidence of samples that are ranked against each other; stages run on chosen rows."""

    def __init__(self, settings: BlockSettings, victim: Victim, x: Tensor, y: Tensor, rng: SampleRng) -> None:
        self.settings, self.victim, self.x, self.y, self.rng = settings, victim, x, y, rng
        self.x_adv, self.evidence = x.clone(), blank_search(x)
        self.half: Half | None = None
        self.layers: AttentionMap | None = None
        self.saturated = False
        self.lost = False  # whether the victim has no gradient
        self.trusted = True  # whether the victim does what its gradients promise
        self.detour: Chosen | None = None  # a view with better gradients than the victim's
        for name in ("stage", "round"):
            self.evidence[name] = torch.full((len(x),), -1, dtype=torch.long, device=x.device)
        self.evidence["ce_flat"] = torch.zeros(len(x), dtype=torch.bool, device=x.device)

    def probe(self) -> None:
        """Probe the model on the first images: saturation of its attention, and whether its gradients can be trusted."""
        x, y, first = self.x[:WATCHED], self.y[:WATCHED], slice(0, WATCHED)
        self.layers, self.saturated = model_checks.attention(self.victim, x)
        self.evidence["saturated"] = torch.full_like(self.evidence["fooled"], self.saturated)
        self.evidence["forwards"][:1] += 1
        self.evidence["forwards"][first] += len(self.layers) > 0
        if self.settings.budget is None:
            self._check_gradients(x, y, first)
        if self.settings.half and self.detour is None:
            half = Half(self.victim)
            rng = self.rng[torch.arange(len(x))].child("agreement")
            agreement = model_checks.agreement(self.victim, half, self.settings.ball, x, y, rng)
            self.evidence["agreement"] = torch.full_like(self.evidence["margin"], agreement)
            for passes in ("forwards", "backwards"):
                self.evidence[passes][first] += model_checks.PASSES // 2
            self.half = half if agreement >= model_checks.AGREEMENT else None

    def _check_gradients(self, x: Tensor, y: Tensor, first: slice) -> None:
        """Look for a detour where the model is random, or does not do what its gradients promise."""
        if self.victim.is_random:
            self.detour = averaged(self.victim)
            return
        rng, ball = self.rng[torch.arange(len(x))], self.settings.ball
        fidelity, self.lost = model_checks.trust(self.victim, ball, x, y, rng.child("fidelity"))
        self.evidence["fidelity"] = torch.full_like(self.evidence["margin"], fidelity)
        if self.lost:
            self.evidence["no_gradient"] = torch.ones_like(self.evidence["fooled"])
        spent = PassesPerImage(1) if self.lost else model_checks.FIDELITY_PASSES
        self.trusted = fidelity >= TRUSTED
        if not self.trusted:
            self.detour, trials = choose(self.victim, ball, x, y, rng.child("detour"))
            spent = spent.plus(trials.times(1 / len(x)))
        self.evidence["forwards"][first] += round(spent.forwards)
        self.evidence["backwards"][first] += round(spent.backwards)

    def run_blind(self) -> None:
        """Go on with attacks that use logits alone, since the model has no gradient."""
        self.half = None
        for name in ("no_gradient", "zero_grad"):
            self.evidence[name] = torch.ones_like(self.evidence["fooled"])
        self.run(blind_stages(self.settings.ball, self.settings.budget, self.victim), self.survivors(), 0)

    @property
    def doubts(self) -> tuple[str, ...]:
        """The detour taken, which no record names."""
        return (self.detour.doubt,) if self.detour else ()

    @property
    def spent(self) -> int:
        return int(self._passes.sum())

    @property
    def _passes(self) -> Tensor:
        return self.evidence["forwards"] + self.evidence["backwards"]

    def survivors(self, rows: Tensor | None = None) -> Tensor:
        """Rows that nothing has fooled so far."""
        fooled = self.evidence["fooled"]
        return (~fooled).nonzero().flatten() if rows is None else rows[~fooled[rows]]

    def nearest(self, rows: Tensor, count: int) -> Tensor:
        """Rows closest to the decision boundary, in their original order."""
        order = self.evidence["margin"][rows].argsort(descending=True, stable=True)
        return rows[order[:count].sort().values]

    def ties(self, near: float) -> Tensor:
        """Survivors within the share `near` of the median survivor's distance from the boundary."""
        rows = self.survivors()
        margin = self.evidence["margin"][rows]
        return rows[margin > near * margin.median()] if len(rows) else rows

    def run(self, stages: tuple[AutoStage, ...], rows: Tensor, turn: int) -> int:
        """Run stages on the survivors among the rows that can afford them; returns how many they broke."""
        before = len(self.survivors())
        for stage in stages:
            left = self.survivors(rows)
            if self.settings.budget is not None:
                left = left[self._passes[left] + self._most(stage) + overhead(self.victim) <= self.settings.budget]
            size = self.settings.chunk
            chunks = [left[at : at + size] for at in range(0, len(left), size)]
            for chunk in in_stage(f"{stage.name}, round {turn}" if turn else stage.name, chunks):
                self._run(stage, chunk, turn)
        return before - len(self.survivors())

    def _most(self, stage: AutoStage) -> int:
        """Most passes a stage may spend: in bfloat16 a claim may fail, and the float32 tail must be affordable, too."""
        price, tail = (of.dearest(self.settings.ball, self.victim) for of in (stage, self.settings.tail))
        return price if self.half is None or stage.name in IN_FP32 else 2 * price + tail

    def _run(self, stage: AutoStage, rows: Tensor, turn: int) -> None:
        view: Attackable = self.victim
        if stage.detour:
            assert self.detour is not None
            view = self.detour.view
        elif stage.scale != 1:
            assert self.layers is not None
            factors = torch.full((len(self.layers),), stage.scale, device=self.x.device)
            view = Rescaled(self.victim, factors, layers=self.layers)
        elif self.half is not None and stage.name not in IN_FP32:
            view = self.half
        unconfirmed = self._run_through(stage, view, rows, turn)
        if view is self.half and len(unconfirmed):  # these samples left the stage early without a success
            self._run_through(stage, self.victim, unconfirmed, turn)

    def _run_through(self, stage: AutoStage, view: Attackable, rows: Tensor, turn: int) -> Tensor:
        """Run a stage through a view and record it; returns the rows whose claims the plain victim does not confirm."""
        stream = self.rng[rows].child(stage.name, turn)
        number = (ALL if stage.name in ALL else self.settings.stage_names).index(stage.name)
        x_adv, crafted = stage.attack(view, self.x[rows], self.y[rows], rng=stream)
        claims, own = crafted["fooled"], self.evidence
        fooled, looks = confirmed(self.victim, x_adv, self.y[rows], claims)
        self.x_adv[rows] = x_adv
        cost = {"forwards": crafted["forwards"] + looks, "backwards": crafted["backwards"]}
        for passes, more in cost.items():
            own[passes][rows] += more
        name = f"spent {stage.name}"
        own.setdefault(name, torch.zeros_like(own["forwards"]))
        own[name][rows] += cost["forwards"] + cost["backwards"]
        # blind means that no stage had a gradient; `ce_flat`, that cross-entropy had none
        if stage.name not in LOGITS_ONLY and "zero_grad" in crafted:  # some attacks record neither
            flat = crafted["zero_grad"]
            own["zero_grad"][rows] = flat if number == 0 else own["zero_grad"][rows] & flat
            if stage.name == "apgd_ce":
                own["ce_flat"][rows] |= flat
            own["margin"][rows] = torch.maximum(own["margin"][rows], crafted["margin"])
        own["fooled"][rows] = fooled
        broken = rows[fooled]
        own["first_fooled"][broken] = crafted["first_fooled"][fooled]
        own["stage"][broken], own["round"][broken] = number, turn
        return rows[claims & ~fooled]
