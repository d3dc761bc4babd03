"""Attacks made of attacks: the per-sample worst of several, and restarts of one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from vitattack.attacks import losses
from vitattack.attacks.base import (
    Attack,
    Calibration,
    Crafted,
    blank_evidence,
    depth,
    learned,
    learns,
    look_price,
    needs_calibration,
    recall,
    sources,
)
from vitattack.attacks.losses import AnyLoss
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.victim import frozen


@dataclass(frozen=True)
class Stages:
    """Attacks in turn, each on the samples still standing; a success is confirmed before its sample is let go.

    With `fresh` each stage draws its own noise (restarts). Without it all stages see the noise they would see alone,
    so that the outcome is the per-sample worst case of separate runs. Evidence `name` says who broke the sample.
    """

    attacks: tuple[Attack, ...]
    fresh: bool = False
    name: str = "stage"

    def __post_init__(self) -> None:
        if not self.attacks:
            raise UsageError("worst() holds no attack: write worst(pgd, gama)")

    @property
    def depth(self) -> int:
        """Restarts of restarts need streams of their own at every level."""
        return 1 + max(map(depth, self.attacks))

    def prepare(self, victim: nn.Module, calibration: Calibration, *, rng: SampleRng) -> Stages:
        return replace(self, attacks=tuple(a.prepare(victim, calibration, rng=rng) for a in self.attacks))

    @property
    def plain_only(self) -> bool:
        return any(getattr(attack, "plain_only", False) for attack in self.attacks)

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(source for attack in self.attacks for source in sources(attack)))

    @property
    def learns(self) -> bool:
        return any(learns(attack) for attack in self.attacks)

    @property
    def guesses(self) -> bool:
        return not any(needs_calibration(attack) for attack in self.attacks)

    def learned(self) -> list[Any] | None:
        parts = [learned(attack) for attack in self.attacks]
        return parts if any(part is not None for part in parts) else None

    def recall(self, victim: nn.Module, learned: list[Any]) -> Stages:
        return replace(
            self, attacks=tuple(recall(a, victim, part) for a, part in zip(self.attacks, learned, strict=True))
        )

    def with_loss(self, loss: AnyLoss) -> Stages:
        return replace(self, attacks=tuple(a.with_loss(loss) for a in self.attacks))

    def doubts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(doubt for attack in self.attacks for doubt in attack.doubts()))

    def __call__(self, victim: nn.Module, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        evidence = blank_evidence(x)
        evidence[self.name] = torch.full_like(evidence["first_fooled"], -1)
        result = x.clone()
        active = torch.arange(len(x), device=x.device)
        for number, attack in enumerate(self.attacks):
            if len(active) == 0:
                break
            stream = rng[active]
            if self.fresh and number:
                stream = stream.child(f"restart{self.depth}", number)
            crafted = attack(victim, x[active], y[active], rng=stream)
            result[active] = crafted.x_adv
            for passes in ("forwards", "backwards"):
                evidence[passes][active] += crafted.evidence[passes]
            for name in crafted.evidence.keys() - evidence.keys():
                evidence[name] = _nothing(name, crafted.evidence[name], len(x))
            for name in crafted.evidence.keys() - {"forwards", "backwards", "fooled", self.name}:
                evidence[name][active] = _together(name, evidence[name][active], crafted.evidence[name])
            # a claim is looked at again; one that makes all its steps claims nothing of where it ended
            claimed = crafted.evidence["fooled"]
            looked = torch.ones_like(claimed) if getattr(attack, "unseen", False) else claimed
            fooled = confirmed(victim, crafted.x_adv, y[active], looked)
            price = look_price(victim)
            evidence["forwards"][active] += price * looked.long()
            evidence["fooled"][active] = fooled
            evidence[self.name][active[fooled]] = number
            active = active[~fooled]
        return Crafted(result, evidence)


def confirmed(victim: nn.Module, x_adv: Tensor, y: Tensor, looked: Tensor) -> Tensor:
    """Who of those to be looked at fools the victim by a forward of its own."""
    fooled = looked.clone()
    if bool(looked.any()):
        with frozen(victim), torch.no_grad():
            logits = victim(x_adv[looked])
            plain = victim.verdict(x_adv[looked], logits)  # type: ignore[operator]
            fooled[looked] = ~losses.correct(plain, y[looked])
    return fooled


def _nothing(name: str, rows: Tensor, count: int) -> Tensor:
    """Evidence of samples that no stage has told of."""
    nothing = torch.finfo(rows.dtype).min if name == "margin" else 0 if _gathers(name, rows) else -1
    return torch.full((count,), nothing, dtype=rows.dtype, device=rows.device)


def _together(name: str, before: Tensor, rows: Tensor) -> Tensor:
    """What the stages up to now and the next one say: the last word, but for what is gathered."""
    if name == "margin":
        return torch.maximum(before, rows)
    return before | rows if _gathers(name, rows) else rows


def _gathers(name: str, rows: Tensor) -> bool:
    """What one stage has seen, such as a gradient of zero, stays seen whatever the next one sees."""
    return rows.dtype == torch.bool or name == "flags"
