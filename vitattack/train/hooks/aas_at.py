"""AAS-AT (CVPR 2024): attention scales that belong to the model, and are moved to where its features change most.

The paper leaves its supplementary algorithm unpublished; what it does not say is an option here.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vitattack.attacks.aas.scale_search import LITERAL, Climb, Per, shape_of
from vitattack.attacks.losses import correct
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.attention.baked_scales import fold, install, scales_of
from vitattack.models.attention.map import AttentionMap
from vitattack.models.attention.probe import attention_layers
from vitattack.models.attention.tap import AttentionTap
from vitattack.models.victim import Victim, frozen
from vitattack.train.data.batch import Batch
from vitattack.train.hooks.hooks import Hook, Run

HALVINGS = 3  # of a step that costs too much clean accuracy


@dataclass
class Scaled(Hook):
    """What hooks with attention scales share: the scales are put in at the start and worked into the weights at the end."""

    per: Per = "layer"
    _layers: AttentionMap | None = field(default=None, init=False, repr=False, compare=False)

    learns = False

    def wrap(self, victim: nn.Module) -> nn.Module:
        assert isinstance(victim, Victim)
        self._layers = attention_layers(victim, victim.grey())
        self._layers.require("it has no scores to scale")
        ones = torch.ones(shape_of(self._layers, self.per), device=victim.mean.device)
        install(victim.model, ones, attention_layers(victim.model, victim.grey()), learn=self.learns)
        return victim

    def after_epoch(self, run: Run) -> Mapping[str, float]:
        found = scales_of(run.plain.model)
        assert found is not None
        rows = found.detach().reshape(len(found), -1).mean(1)
        return {f"scale_{number:02d}": float(value) for number, value in enumerate(rows)}

    def plain(self, view: nn.Module) -> nn.Module:
        """Folded where that is exact; elsewhere the scales stay, and the zoo entry names the adapter attention-scales."""
        assert isinstance(view, Victim)
        view = copy.deepcopy(view)
        x = torch.rand((4, *view.grey().shape[1:]), generator=torch.Generator().manual_seed(0))
        grey = (x.to(view.mean.device) - view.mean) / view.std if view.normalises else x.to(view.mean.device)
        fold(view.model, grey)
        return view


@dataclass
class AasAt(Scaled):
    """Every `every` epochs scales are searched on `batches` batches and stay with the model until the next event.

    A search climbs from the present scales in `steps` steps per batch. `robust`: by at most a factor `most` per event,
    never below `floor`, and half as far, a quarter, an eighth or not at all where clean accuracy on the same images
    falls by more than `drop`. `literal`: the paper's Algorithm 1, down to 1e-7, without a look back. `random` draws from
    the same prior without a search.
    """

    every: int = 10
    first: int = 0  # the epoch before the first event; 0 is `every`
    batches: int = 10
    steps: int = 10
    preset: Literal["robust", "literal"] = "robust"
    floor: float = 1e-2
    most: float = 2.0
    drop: float = 0.02
    random: bool = False
    events: int = 0  # at most; 0 is no limit
    _done: dict[str, Any] = field(
        default_factory=lambda: {"events": 0, "changed": 0}, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if self.every < 1 or self.batches < 1 or self.steps < 1 or self.events < 0 or self.first < 0:
            raise UsageError("aas_at takes at least 1 epoch between events, 1 batch and 1 step: aas_at(every=10)")
        if not 0 < self.floor < 1 or not self.most > 1 or not self.drop >= 0:
            raise UsageError("aas_at takes a floor between 0 and 1, most above 1 and a drop of at least 0")

    def before_epoch(self, run: Run) -> None:
        """Never in the first epoch: before that there is nothing to disturb."""
        since, limit = run.epoch - (self.first or self.every), self.events or math.inf
        if since >= 0 and since % self.every == 0 and self._done["events"] < limit:
            self._event(run)

    def search(self, size: int) -> Climb:
        """The search of one event, on batches of `size`."""
        if self.preset == "literal":
            found = replace(LITERAL, batches=self.batches, batch=size, steps=self.steps, per=self.per)
        else:
            found = Climb(
                restarts=1, batches=self.batches, batch=size, steps=self.steps, lower=self.floor, per=self.per
            )
        return replace(found, steps=0) if self.random else found

    def _event(self, run: Run) -> None:
        victim, layers = run.plain, self._layers
        own = scales_of(victim.model)
        assert own is not None and layers is not None
        seen = run.batches(self.batches)
        x, y = torch.cat([b.x for b in seen]), torch.cat([_labels(b) for b in seen])
        before = own.detach().clone()
        rng = SampleRng(run.seed, (0,)).child("aas_at", run.epoch)
        most = math.inf if self.preset == "literal" else self.most
        with torch.no_grad():
            own.fill_(1)  # the search scales from outside, by what it starts from
            try:
                found = self.search(len(seen[0].x)).near(victim, layers, x, y, before, most, rng=rng)
                kept = found.scales
                if self.preset == "robust":
                    kept, run.numbers["aas_drop"] = self._affordable(victim, layers, before, kept, seen)
            except BaseException:
                own.copy_(before)
                raise
            own.copy_(kept)
        # Sums differ in the last bit between machines; the scales may not.
        run.team.mean_([own.data])
        changed = not torch.equal(kept, before)
        self._done = {"events": self._done["events"] + 1, "changed": self._done["changed"] + changed}
        run.numbers |= {
            "aas_events": float(self._done["events"]),
            "aas_changed": float(self._done["changed"]),
            "aas_distance": found.distances[-1] if found.distances else math.nan,
            "aas_moved": float((kept / before).log().abs().mean()),
        }

    def _affordable(
        self, victim: Victim, layers: AttentionMap, before: Tensor, found: Tensor, seen: list[Batch]
    ) -> tuple[Tensor, float]:
        """The scales on the way from `before` to `found` that cost little enough, and the accuracy they cost."""
        clean, lost = self._accuracy(victim, layers, before, seen), 0.0
        for halvings in range(HALVINGS + 1):
            kept = before * (found / before) ** 0.5**halvings if halvings else found
            lost = clean - self._accuracy(victim, layers, kept, seen)
            if lost <= self.drop:
                return kept, lost
        return before, lost

    @staticmethod
    def _accuracy(victim: Victim, layers: AttentionMap, scales: Tensor, seen: list[Batch]) -> float:
        hits = 0
        with frozen(victim), torch.no_grad():
            for batch in seen:
                with AttentionTap(layers, rescale=scales, per="head" if scales.dim() == 2 else "layer"):
                    logits = victim(batch.x)
                hits += int(correct(logits, _labels(batch)).sum())
        return hits / sum(len(batch.x) for batch in seen)

    def state_dict(self) -> dict[str, Any]:
        return dict(self._done)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._done = dict(state)


@dataclass
class LearnedScales(Scaled):
    """Attention scales that learn with the weights, from 1 on: the control that any freedom in the scores would help."""

    learns = True


def _labels(batch: Batch) -> Tensor:
    return batch.y.argmax(1) if batch.y.is_floating_point() else batch.y
