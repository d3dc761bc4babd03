"""Variants of `auto`: each stage removed, shortened or joined by another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from vitattack.attacks import attack_text
from vitattack.attacks.auto.attack import Auto
from vitattack.attacks.auto.auto_stage import AutoStage
from vitattack.attacks.base import Attack, Crafted, Wrapper, blank_search
from vitattack.attacks.price import PassesPerImage, Price, PriceQuery
from vitattack.core.rng import SampleRng
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.attention.rescaled import Rescaled
from vitattack.models.base import Attackable
from vitattack.models.victim import Victim
from vitattack.threats.lp import LpBall

HEAVY = "rule=heavy_ball(size=2, schedule=cosine)"
AGAIN = f"targets(pgd(steps=8, start=corner, {HEAVY}))"
# Stages that `auto` could have and does not: last in a round, or first or last in the opening.
LATER = {
    "fp64 apgd_ce 20": "fp64(apgd_ce(steps=20))",
    "mifpe 50": "mifpe(steps=50)",
    "pm 100": "apgd(steps=100, loss=pm)",
    "pma 50": "pma(steps=50)",
    "dlr 100": "apgd(steps=100, loss=dlr)",
    "odi 20": f"pgd(steps=20, loss=margin, start=odi, {HEAVY})",
    "apgd_t 30": "targets(apgd(steps=30))",
    "targets of 8 steps": AGAIN,
    "fab_t 10": "fab_t(steps=10)",
    "square 300": "square(queries=300)",
}
FIRST = {f"corner of {n} steps": f"pgd(steps={n}, loss=margin, start=corner, {HEAVY})" for n in (4, 8, 16)}
EARLY = {
    "pm 8": f"pgd(steps=8, loss=pm, start=corner, {HEAVY})",
    "mifpe 8": f"pgd(steps=8, loss=mifpe, start=corner, {HEAVY})",
    "dlr 8": f"pgd(steps=8, loss=dlr, start=corner, {HEAVY})",
    "ce 8": f"pgd(steps=8, loss=ce, start=corner, {HEAVY})",
    "odi 8": f"pgd(steps=8, loss=margin, start=odi, {HEAVY})",
}
SETTINGS = {
    **{f"{k} targets": f"k={k}" for k in (3, 5, 7)},
    **{f"targets of {n} steps": f"steps={n}" for n in (2, 3, 4, 5, 8)},
    **{f"{k} targets of {n} steps": f"k={k}, steps={n}" for k, n in ((5, 8), (5, 3), (3, 8))},
    **{f"long runs of {n} steps": f"long={n}" for n in (25, 50, 100, 200)},
}


def built(text: str, ball: LpBall) -> Auto:
    found = attack_text.build(text, ball)
    assert isinstance(found, Auto)
    return found


def without(whole: Auto, *names: str) -> Auto:
    def rest(part: tuple[AutoStage, ...]) -> tuple[AutoStage, ...]:
        return tuple(stage for stage in part if stage.name not in names)

    return in_rounds(replace(whole, opening=rest(whole.opening)), rest)


def in_rounds(whole: Auto, change: Callable[[tuple[AutoStage, ...]], tuple[AutoStage, ...]]) -> Auto:
    """Apply a change to both kinds of rounds: those for saturated attention, and the others."""
    return replace(whole, rounds=change(whole.rounds), hard=change(whole.hard))


def joined(more: AutoStage, stages: tuple[AutoStage, ...]) -> tuple[AutoStage, ...]:
    return (*stages, more)


def variants(ball: LpBall) -> dict[str, Auto]:
    """Variants by name, the unchanged attack first; equal ones are listed once."""
    whole = built("auto", ball)
    stages = (*whole.opening, *whole.hard)
    views = [stage for stage in stages if stage.scale != 1]
    found = {"whole": whole} | {f"without {stage.name}": without(whole, stage.name) for stage in stages}
    found["without substitute gradients"] = replace(whole, detour=whole.detour._replace(attack=Nothing()))
    found["without square"] = replace(whole, black_box=whole.black_box._replace(attack=Nothing()))
    found["without near ties"] = replace(whole, ties=whole.ties._replace(attack=Nothing()))
    found["without rounds"] = in_rounds(whole, lambda stages: ())
    found["hard rounds as short as others"] = replace(whole, hard=(*views, *whole.rounds))
    found["no hard rounds"] = replace(whole, hard=whole.rounds)
    found |= {f"share 1/{n}": replace(whole, share=1 / n) for n in (16, 8, 2, 1)}
    found |= {f"at most {n} rounds": replace(whole, most=n) for n in (1, 2)}
    found |= {name: built(f"auto({text})", ball) for name, text in SETTINGS.items()}
    again = AutoStage("again", attack_text.build(AGAIN, ball))
    found["targets again for apgd margin"] = in_rounds(
        whole, lambda stages: tuple(again if s.name == "apgd margin" else s for s in stages)
    )
    found["targets of 4 steps, share 1/8"] = replace(built("auto(steps=4)", ball), share=1 / 8)
    always = tuple(AutoStage(f"{view.name}, always", Through(view.attack, view.scale)) for view in views)
    found["views whatever the attention"] = replace(whole, rounds=(*whole.rounds, *always))
    for name, text in LATER.items():
        more = AutoStage(name, attack_text.build(text, ball))
        found[f"with {name}"] = in_rounds(whole, partial(joined, more))
    for name, text in FIRST.items():
        found[f"{name} first"] = replace(
            whole, opening=(AutoStage(name, attack_text.build(text, ball)), *whole.opening)
        )
    for name, text in EARLY.items():
        found[f"opening with {name}"] = replace(
            whole, opening=(*whole.opening, AutoStage(name, attack_text.build(text, ball)))
        )
    different: dict[str, Auto] = {}
    for name, attack in found.items():
        different |= {} if attack in different.values() else {name: attack}
    return different


@dataclass(frozen=True)
class Nothing(Attack):
    """An attack that returns the images as they are, free of charge."""

    def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        return Crafted(x.clone(), blank_search(x))

    def price(self, query: PriceQuery) -> Price:
        return Price(PassesPerImage())


@dataclass(frozen=True)
class Through(Wrapper):
    """An attack through a view with scaled attention, whether or not attention saturates; on the victim if it has none."""

    inner: Attack
    scale: float

    def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        assert isinstance(victim, Victim)
        layers = attention_layers(victim, victim.grey())
        if not layers:
            return self.inner(victim, x, y, rng=rng)
        return self.inner(Rescaled(victim, torch.full((len(layers),), self.scale), layers=layers), x, y, rng=rng)
