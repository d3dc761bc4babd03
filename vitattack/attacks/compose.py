"""Attacks made of attacks: the per-sample worst of several, and restarts of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from torch import Tensor

from vitattack.attacks import losses
from vitattack.attacks.base import Attack, Crafted, Traits, blank_evidence, inherited
from vitattack.attacks.price import Asked, Price, total
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.models.victim import frozen
from vitattack.text.syntax import arguments


@dataclass(frozen=True)
class Stages(Attack):
    """Attacks in turn, each on the samples still standing; a success is confirmed before its sample is let go.

    With `fresh` each stage draws its own noise (restarts). Without it all stages see the noise they would see alone,
    so that the outcome is the per-sample worst case of separate runs. Evidence `name` says who broke the sample.
    """

    attacks: tuple[Attack, ...]
    fresh: bool = False
    name: str = "stage"
    names: tuple[str, ...] = ()  # of the stages, where a report tells them apart

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
        inner = inherited(self.attacks)
        near = len(self.attacks) > 1 or self.attacks[0].traits.near_boundary
        # restarts of restarts need streams of their own at every level
        return replace(inner, depth=1 + inner.depth, near_boundary=near)

    def stage_names(self, text: str) -> tuple[str, ...]:
        return self.names

    def price(self, asked: Asked) -> Price:
        runs = [list(same) for _, same in groupby(self.attacks, key=id)]  # restarts hold one attack many times
        return total(in_turn(same[0], asked).times(len(same)) for same in runs)

    def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        evidence = blank_evidence(x)
        evidence[self.name] = torch.full_like(evidence["first_fooled"], -1)
        result = x.clone()
        active = torch.arange(len(x), device=x.device)
        depth = self.traits.depth
        for number, attack in enumerate(self.attacks):
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
            # a claim is looked at again; one that makes all its steps claims nothing of where it ended
            claimed = crafted.evidence["fooled"]
            looked = torch.ones_like(claimed) if attack.traits.unseen else claimed
            fooled = confirmed(victim, crafted.x_adv, y[active], looked)
            evidence["forwards"][active] += victim.look * looked.long()
            evidence["fooled"][active] = fooled
            evidence[self.name][active[fooled]] = number
            active = active[~fooled]
        return Crafted(result, evidence)


@dataclass(frozen=True)
class Worst(Stages):
    """Stages that are known by the texts of their attacks."""

    def stage_names(self, text: str) -> tuple[str, ...]:
        return arguments(text)


def in_turn(attack: Attack, asked: Asked) -> Price:
    """The price of an attack whose candidates others go on from: one that has not looked at them has to."""
    return attack.price(asked).more(asked.look * attack.traits.unseen)


def confirmed(victim: Attackable, x_adv: Tensor, y: Tensor, looked: Tensor) -> Tensor:
    """(B,) which of the `looked` rows fool the victim, by one more forward."""
    fooled = looked.clone()
    if bool(looked.any()):
        with frozen(victim), torch.no_grad():
            logits = victim(x_adv[looked])
            plain = victim.verdict(x_adv[looked], logits)
            fooled[looked] = losses.is_fooled(plain, y[looked])
    return fooled


def _blank_rows(name: str, rows: Tensor, count: int) -> Tensor:
    """Evidence of samples that no stage has reported on."""
    nothing = torch.finfo(rows.dtype).min if name == "margin" else 0 if _accumulates(name, rows) else -1
    return torch.full((count,), nothing, dtype=rows.dtype, device=rows.device)


def _merged(name: str, before: Tensor, rows: Tensor) -> Tensor:
    """Evidence of the stages so far with that of the next: the later one wins, except where evidence accumulates."""
    if name == "margin":
        return torch.maximum(before, rows)
    return before | rows if _accumulates(name, rows) else rows


def _accumulates(name: str, rows: Tensor) -> bool:
    """Whether evidence such as a zero gradient, once seen by a stage, stands whatever later stages see."""
    return rows.dtype == torch.bool or name == "flags"
