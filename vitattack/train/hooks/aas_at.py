"""AAS-AT (Jain and Dutta, CVPR 2024): attention scales inside the model, searched to change its features the most.

The supplementary algorithm of the paper is unpublished; details it leaves open are options here.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from vitattack.attacks.aas.climb import LITERAL, Climb
from vitattack.attacks.aas.scale_search import Per, shape_of
from vitattack.attacks.losses.base import is_correct
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.attention.attention_map import AttentionMap
from vitattack.models.attention.baked_scales import fold_scales, install_scales, scales_of
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.attention.tap import AttentionTap
from vitattack.models.base import Attackable
from vitattack.models.victim import Victim, frozen
from vitattack.train.data.batch import Batch
from vitattack.train.hooks.base import Hook, RunState

HALVINGS = 3  # tried on a move that costs too much clean accuracy


@dataclass
class AttentionScales(Hook):
    """Base of hooks with attention scales, installed at the start and folded into the weights at the end."""

    per: Per = "layer"
    _layers: AttentionMap | None = field(default=None, init=False, repr=False, compare=False)

    learn = False

    def wrap(self, victim: Attackable) -> Attackable:
        assert isinstance(victim, Victim)
        self._layers = attention_layers(victim, victim.grey())
        self._layers.require("it has no scores to scale")
        ones = torch.ones(shape_of(self._layers, self.per), device=victim.mean.device)
        install_scales(victim.model, ones, attention_layers(victim.model, victim.grey()), learn=self.learn)
        return victim

    def after_epoch(self, run: RunState) -> Mapping[str, float]:
        scales = scales_of(run.plain.model)
        assert scales is not None
        rows = scales.detach().reshape(len(scales), -1).mean(1)
        return {f"scale_{number:02d}": float(value) for number, value in enumerate(rows)}

    def plain(self, view: Attackable) -> Attackable:
        """Fold the scales where that is exact; elsewhere they stay, and the zoo entry names the adapter attention-scales."""
        assert isinstance(view, Victim)
        view = copy.deepcopy(view)
        x = torch.rand((4, *view.grey().shape[1:]), generator=torch.Generator().manual_seed(0))
        grey = (x.to(view.mean.device) - view.mean) / view.std if view.normalises else x.to(view.mean.device)
        fold_scales(view.model, grey)
        return view


@dataclass
class AasAt(AttentionScales):
    """Search scales on `batches` batches every `every` epochs and keep them in the model until the next search.

    A search climbs from the current scales in `steps` steps per batch. Preset `robust` moves them by at most a factor
    `most` per event, never below `floor`, and half as far, a quarter, an eighth or not at all where clean accuracy on
    the same images falls by more than `drop`. Preset `literal` is the paper's Algorithm 1: down to 1e-7, with no regard
    to clean accuracy. `random` draws from the same prior without a search.
    """

    every: int = 10
    first: int = 0  # epochs before the first event; 0 stands for `every`
    batches: int = 10
    steps: int = 10
    preset: Literal["robust", "literal"] = "robust"
    floor: float = 1e-2
    most: float = 2.0
    drop: float = 0.02
    random: bool = False
    events: int = 0  # at most; 0 for no limit
    _history: dict[str, Any] = field(
        default_factory=lambda: {"events": 0, "changed": 0}, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if self.every < 1 or self.batches < 1 or self.steps < 1 or self.events < 0 or self.first < 0:
            raise UsageError("aas_at takes at least 1 epoch between events, 1 batch and 1 step: aas_at(every=10)")
        if not 0 < self.floor < 1 or not self.most > 1 or not self.drop >= 0:
            raise UsageError("aas_at takes a floor between 0 and 1, most above 1 and a drop of at least 0")

    def before_epoch(self, run: RunState) -> None:
        """Search scales if this epoch is due; never in the first, whose model has learned nothing yet."""
        since, limit = run.epoch - (self.first or self.every), self.events or math.inf
        if since >= 0 and since % self.every == 0 and self._history["events"] < limit:
            self._event(run)

    def search(self, size: int) -> Climb:
        """The search of one event, on batches of `size`."""
        if self.preset == "literal":
            search = replace(LITERAL, batches=self.batches, batch=size, steps=self.steps, per=self.per)
        else:
            search = Climb(
                restarts=1, batches=self.batches, batch=size, steps=self.steps, lower=self.floor, per=self.per
            )
        return replace(search, steps=0) if self.random else search

    def _event(self, run: RunState) -> None:
        victim, layers = run.plain, self._layers
        own = scales_of(victim.model)
        assert own is not None and layers is not None
        batches = run.batches(self.batches)
        x, y = torch.cat([b.x for b in batches]), torch.cat([_labels(b) for b in batches])
        before = own.detach().clone()
        rng = SampleRng(run.seed, (0,)).child("aas_at", run.epoch)
        run.stage("searching attention scales", 0, 1)
        most = math.inf if self.preset == "literal" else self.most
        with torch.no_grad():
            own.fill_(1)  # the search applies scales from outside, starting from `before`
            try:
                search = self.search(len(batches[0].x)).near(victim, layers, x, y, before, most, rng=rng)
                scales = search.scales
                if self.preset == "robust":
                    scales, run.numbers["aas_drop"] = self._affordable(victim, layers, before, scales, batches)
            except BaseException:
                own.copy_(before)
                raise
            own.copy_(scales)
        # Sums may differ in the last bit between processes; the scales must not.
        run.processes.mean_([own.data])
        run.stage("searching attention scales", 1, 1)
        changed = not torch.equal(scales, before)
        self._history = {"events": self._history["events"] + 1, "changed": self._history["changed"] + changed}
        run.numbers |= {
            "aas_events": float(self._history["events"]),
            "aas_changed": float(self._history["changed"]),
            **({"aas_distance": search.distances[-1]} if search.distances else {}),
            "aas_moved": float((scales / before).log().abs().mean()),
        }

    def _affordable(
        self, victim: Victim, layers: AttentionMap, before: Tensor, searched: Tensor, batches: list[Batch]
    ) -> tuple[Tensor, float]:
        """The furthest scales on the way to the searched ones that clean accuracy can afford, and what they cost it."""
        clean, lost = self._accuracy(victim, layers, before, batches), 0.0
        for halvings in range(HALVINGS + 1):
            scales = before * (searched / before) ** 0.5**halvings if halvings else searched
            lost = clean - self._accuracy(victim, layers, scales, batches)
            if lost <= self.drop:
                return scales, lost
        return before, lost

    @staticmethod
    def _accuracy(victim: Victim, layers: AttentionMap, scales: Tensor, batches: list[Batch]) -> float:
        hits = 0
        with frozen(victim), torch.no_grad():
            for batch in batches:
                with AttentionTap(layers, rescale=scales, per="head" if scales.dim() == 2 else "layer"):
                    logits = victim(batch.x)
                hits += int(is_correct(logits, _labels(batch)).sum())
        return hits / sum(len(batch.x) for batch in batches)

    def state_dict(self) -> dict[str, Any]:
        return dict(self._history)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._history = dict(state)


@dataclass
class LearnedScales(AttentionScales):
    """Attention scales learned with the weights, starting at 1: the control for AAS-AT."""

    learn = True


def _labels(batch: Batch) -> Tensor:
    return batch.y.argmax(1) if batch.y.is_floating_point() else batch.y
