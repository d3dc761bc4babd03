"""What `auto` could be instead: each stage taken out, cut short or joined by another, and several savings at once."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from vitattack import spec
from vitattack.attacks.auto import Auto, Stage
from vitattack.attacks.base import Attack, Crafted, Holder
from vitattack.attacks.gradient import Gradient
from vitattack.models.probing import attention_layers
from vitattack.models.rescaled import Rescaled
from vitattack.models.victim import Victim
from vitattack.rng import SampleRng
from vitattack.threat import LpBall

HEAVY = "rule=heavy_ball(size=2, schedule=cosine)"
# What `auto` could have and does not: each as the last stage of a round, then at the end of the opening.
LATER = {
    "fp64 apgd_ce 20": "fp64(apgd_ce(steps=20))",
    "mifpe 50": "mifpe(steps=50)",
    "pm 100": "apgd(steps=100, loss=pm)",
    "pma 50": "pma(steps=50)",
    "dlr 100": "apgd(steps=100, loss=dlr)",
    "odi 20": f"pgd(steps=20, loss=margin, start=odi, {HEAVY})",
    "apgd_t 30": "targets(apgd(steps=30))",
    "fab_t 10": "fab_t(steps=10)",
    "square 300": "square(queries=300)",
}
EARLY = {
    "pm 8": f"pgd(steps=8, loss=pm, start=corner, {HEAVY})",
    "mifpe 8": f"pgd(steps=8, loss=mifpe, start=corner, {HEAVY})",
    "dlr 8": f"pgd(steps=8, loss=dlr, start=corner, {HEAVY})",
    "ce 8": f"pgd(steps=8, loss=ce, start=corner, {HEAVY})",
    "odi 8": f"pgd(steps=8, loss=margin, start=odi, {HEAVY})",
}
SETTINGS = {
    **{f"{k} targets": f"k={k}" for k in (3, 5, 7)},
    **{f"targets of {n} steps": f"steps={n}" for n in (2, 3, 4, 8)},
    **{f"{k} targets of {n} steps": f"k={k}, steps={n}" for k, n in ((5, 8), (5, 3), (3, 8))},
    **{f"long runs of {n} steps": f"long={n}" for n in (25, 50, 200)},
}
# Several savings at once: what the single ones say together.
LEAN = {
    "9 x 3 steps, long 50": "steps=3, long=50",
    "9 x 4 steps, long 50": "steps=4, long=50",
    "9 x 5 steps, long 50": "steps=5, long=50",
    "9 x 3 steps, long 100": "steps=3, long=100",
}


def built(text: str, ball: LpBall) -> Auto:
    found = spec.build(text, ball)
    assert isinstance(found, Auto)
    return found


def without(whole: Auto, *names: str) -> Auto:
    opening, rounds = (tuple(s for s in part if s.name not in names) for part in (whole.opening, whole.rounds))
    return replace(whole, opening=opening, rounds=rounds)


def corner(whole: Auto, steps: int) -> Auto:
    first, *rest = whole.opening
    assert isinstance(first.attack, Gradient)
    return replace(whole, opening=(first._replace(attack=replace(first.attack, steps=steps)), *rest))


def variants(ball: LpBall) -> dict[str, Auto]:
    """Every variant by its name, the whole of it first."""
    whole = built("auto", ball)
    stages = (*whole.opening, *whole.rounds)
    views = [stage for stage in stages if stage.scale != 1]
    found = {"whole": whole} | {f"without {stage.name}": without(whole, stage.name) for stage in stages}
    found["without views"] = without(whole, *(view.name for view in views))
    found["without rounds"] = replace(whole, rounds=())
    found |= {f"share 1/{n}": replace(whole, share=1 / n) for n in (16, 8, 2, 1)}
    found |= {f"at most {n} rounds": replace(whole, most=n) for n in (1, 2)}
    found |= {f"corner of {n} steps": corner(whole, n) for n in (4, 16)}
    found |= {name: built(f"auto({text})", ball) for name, text in SETTINGS.items()}
    for name, text in LEAN.items():
        lean = built(f"auto({text})", ball)
        found |= {} if lean in found.values() else {f"lean: {name}": lean}
        found[f"lean: {name}, no corner"] = without(lean, "corner")
        found[f"lean: {name}, no corner, no apgd_ce"] = without(lean, "corner", "apgd_ce")
        found[f"lean: {name}, no corner, share 1/8"] = replace(without(lean, "corner"), share=1 / 8)
    always = tuple(Stage(f"{view.name}, always", Through(view.attack, view.scale)) for view in views)
    found["views whatever the attention"] = replace(whole, rounds=(*whole.rounds, *always))
    for name, text in LATER.items():
        found[f"with {name}"] = replace(whole, rounds=(*whole.rounds, Stage(name, spec.build(text, ball))))
    for name, text in EARLY.items():
        found[f"opening with {name}"] = replace(whole, opening=(*whole.opening, Stage(name, spec.build(text, ball))))
    return found


@dataclass(frozen=True)
class Through(Holder):
    """An attack through a view with scaled attention, asked for or not."""

    inner: Attack
    scale: float

    def __call__(self, victim: nn.Module, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        assert isinstance(victim, Victim)
        layers = attention_layers(victim, victim.grey())
        return self.inner(Rescaled(victim, torch.full((len(layers),), self.scale), layers=layers), x, y, rng=rng)
