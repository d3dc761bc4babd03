"""Attacks in sequence on the survivors: the per-sample worst case of several attacks, and restarts of one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from torch import Tensor

from vitattack.attacks.base import Attack, Crafted, Traits, blank_evidence, inherited_traits
from vitattack.attacks.catalogue import catalogued
from vitattack.attacks.losses.base import claim_draws, fools
from vitattack.attacks.price import Price, PriceQuery, total
from vitattack.core.errors import UsageError
from vitattack.core.progress import in_stage
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.models.victim import frozen
from vitattack.text.syntax import arguments


@dataclass(frozen=True)
class Stages(Attack):
    """Attacks in turn, each on the survivors of those before it; a success is confirmed before its sample leaves.

    With `fresh` each stage draws its own noise (restarts). Without it every stage draws the noise it would draw alone,
    so the outcome is the per-sample worst case of separate runs. The evidence called `name` is the number of the stage
    that broke a sample.
    """

    attacks: tuple[Attack, ...]
    fresh: bool = False
    name: str = "stage"
    names: tuple[str, ...] = ()  # of the stages, for reports

    def __post_init__(self) -> None:
        if not self.attacks:
            raise UsageError("worst() holds no attack: write worst(pgd, gama)")

    @property
    def parts(self) -> tuple[Attack, ...]:
        return self.attacks

    def with_parts(self, parts: Sequence[Attack]) -> Stages:
        return replace(self, attacks=tuple(parts))

    @property
    def traits(self) -> Traits:
        inner = inherited_traits(self.attacks)
        near = len(self.attacks) > 1 or self.attacks[0].traits.near_boundary
        # nested restarts need streams of their own at every level
        return replace(inner, depth=1 + inner.depth, near_boundary=near)

    def in_chunks(self, size: int) -> Stages:
        return self.with_parts([attack.in_chunks(size) for attack in self.attacks])

    def stage_names(self, text: str) -> tuple[str, ...]:
        return self.names

    def price(self, query: PriceQuery) -> Price:
        runs = [list(same) for _, same in groupby(self.attacks, key=id)]  # restarts hold the same attack many times
        return total(price_with_verdict(same[0], query).times(len(same)) for same in runs)

    def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        evidence = blank_evidence(x)
        evidence[self.name] = torch.full_like(evidence["first_fooled"], -1)
        result = x.clone()
        active = torch.arange(len(x), device=x.device)
        depth = self.traits.depth
        for number, attack in enumerate(in_stage("runs", self.attacks)):
            if len(active) == 0:
                break
            stream = rng[active]
            if self.fresh and number:
                stream = stream.child(f"restart{depth}", number)
            crafted = attack(victim, x[active], y[active], rng=stream)
            result[active] = crafted.x_adv
            for passes in ("forwards", "backwards"):
                evidence[passes][active] += crafted.evidence[passes]
            for name in crafted.evidence.keys() - evidence.keys():
                evidence[name] = _blank_rows(name, crafted.evidence[name], len(x))
            for name in crafted.evidence.keys() - {"forwards", "backwards", "fooled", self.name}:
                evidence[name][active] = _merged(name, evidence[name][active], crafted.evidence[name])
            # claimed successes are checked again; an attack without early stopping claims none, so all are checked
            claimed = crafted.evidence["fooled"]
            checked = torch.ones_like(claimed) if attack.traits.unverified else claimed
            fooled, spent = confirmed(victim, crafted.x_adv, y[active], checked)
            evidence["forwards"][active] += spent
            evidence["fooled"][active] = fooled
            evidence[self.name][active[fooled]] = number
            active = active[~fooled]
        return Crafted(result, evidence)


@dataclass(frozen=True)
class Worst(Stages):
    """Stages named by the texts of their attacks."""

    def stage_names(self, text: str) -> tuple[str, ...]:
        return arguments(text)


def price_with_verdict(attack: Attack, query: PriceQuery) -> Price:
    """Price of an attack as a stage: candidates it returns unverified cost one more query each."""
    return attack.price(query).more(query.look * attack.traits.unverified)


def confirmed(victim: Attackable, x_adv: Tensor, y: Tensor, checked: Tensor) -> tuple[Tensor, Tensor]:
    """(B,) rows among `checked` that fool the victim, by one more look, and the forwards it took."""
    fooled, spent = checked.clone(), victim.look * checked.long()
    if bool(checked.any()):
        with frozen(victim), torch.no_grad():
            logits = victim(x_adv[checked])
            plain = victim.verdict(x_adv[checked], logits)
            fooled[checked] = fools(victim, x_adv[checked], plain, y[checked])
            spent[checked] += claim_draws(victim, plain, y[checked])
    return fooled, spent


@catalogued(paper="common practice", quick="restarts(2, pgd(steps=3))", threats=None)
def restarts(n: int, inner: Attack) -> Stages:
    """Restarts: the inner attack n times with fresh noise, each time on the survivors."""
    if not 1 <= n <= 10_000:
        raise UsageError(f"{n} restarts are too few or too many: use 1 to 10000")
    return Stages((inner,) * n, fresh=True)


@catalogued(paper="per-sample worst case", quick="worst(pgd(steps=3), gama(steps=4))", threats=None)
def worst(*attacks: Attack) -> Worst:
    """Several attacks in turn, each on the survivors: equal to the per-sample worst case of separate runs."""
    return Worst(attacks)


def _blank_rows(name: str, rows: Tensor, count: int) -> Tensor:
    """Evidence of samples before any stage has reported on them."""
    known = {"margin": torch.finfo(rows.dtype).min, "distance": math.inf} if rows.is_floating_point() else {}
    nothing = known.get(name, 0 if _accumulates(name, rows) else -1)
    return torch.full((count,), nothing, dtype=rows.dtype, device=rows.device)


def _merged(name: str, before: Tensor, rows: Tensor) -> Tensor:
    """Merge the evidence of the next stage into that of the stages before: the best stays, signs add up, the rest is replaced."""
    if name == "margin":
        return torch.maximum(before, rows)
    if name == "distance":
        return torch.minimum(before, rows)
    return before | rows if _accumulates(name, rows) else rows


def _accumulates(name: str, rows: Tensor) -> bool:
    """Whether evidence such as a zero gradient, once observed by a stage, is kept whatever later stages observe."""
    return rows.dtype == torch.bool or name == "flags"
