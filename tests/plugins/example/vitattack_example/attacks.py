"""An attack made of vitattack's parts, one of its own, and a loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitattack.attacks.base import Attack, Crafted, blank_evidence
from vitattack.attacks.catalogue import catalogued
from vitattack.attacks.gradient.loop import Gradient
from vitattack.attacks.gradient.starts import Clean
from vitattack.attacks.gradient.steps import Sign
from vitattack.attacks.losses.base import AnyLoss, is_fooled
from vitattack.attacks.losses.plain import CrossEntropy
from vitattack.attacks.price import Price, PriceQuery
from vitattack.core.rng import SampleRng
from vitattack.models.base import Attackable
from vitattack.models.victim import frozen
from vitattack.threats.lp import LpBall
from vitattack_example.threat import Brightness


@dataclass(frozen=True)
class TrueLogit:
    """Minus the logit of the true class."""

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        return -logits.gather(1, y[:, None]).squeeze(1)


@catalogued(paper="Kurakin et al., ICLR 2017 workshop", quick="bim(steps=3)", draws=False)
def bim(ball: LpBall, *, steps: int = 10, loss: AnyLoss = CrossEntropy()) -> Gradient:
    """The basic iterative method: signs of the gradient from the image itself."""
    return Gradient(ball, steps, Sign(1 / steps), loss, Clean())


@dataclass(frozen=True)
class Brighten(Attack):
    """Evenly spaced brightnesses, from the darkest to the brightest, until one fools the model."""

    threat: Brightness
    levels: int

    def price(self, query: PriceQuery) -> Price:
        return Price().more(query.look * self.levels)

    @torch.no_grad()
    def __call__(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Crafted:
        evidence, result = blank_evidence(x), x.clone()
        rows = torch.arange(len(x), device=x.device)
        with frozen(victim):
            for number, level in enumerate(torch.linspace(-self.threat.most, self.threat.most, self.levels).tolist()):
                if len(rows) == 0:
                    break
                result[rows] = (x[rows] + level).clamp(0, 1)
                fooled = is_fooled(victim.verdict(result[rows], victim(result[rows])), y[rows])
                evidence["forwards"][rows] += victim.look
                evidence["first_fooled"][rows[fooled]] = number
                evidence["fooled"][rows[fooled]] = True
                rows = rows[~fooled]
        return Crafted(result, evidence)


@catalogued(paper="none", quick="brighten(levels=3)", threats=("brightness",), black_box=True, draws=False)
def brighten(threat: Brightness, *, levels: int = 11) -> Brighten:
    """Every brightness of a grid in turn."""
    return Brighten(threat, levels)
