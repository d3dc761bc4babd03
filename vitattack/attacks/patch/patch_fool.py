"""Patch-Fool: a patch where attention is largest, that also draws attention to itself (Fu et al., ICLR 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from vitattack.attacks.base import Calibration, Traits
from vitattack.attacks.catalogue import catalogued
from vitattack.attacks.gradient.loop import Gradient
from vitattack.attacks.gradient.starts import Start, Uniform
from vitattack.attacks.gradient.steps import Cosine, Momentum
from vitattack.attacks.losses.base import AnyLoss
from vitattack.attacks.losses.plain import CrossEntropy
from vitattack.attacks.patch.attack import WHOLE_BOX, InPatch
from vitattack.attacks.patch.places import MostAttention, Place, require_received
from vitattack.attacks.price import Price, PriceQuery
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.attention.attention_map import AttentionMap
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.base import Attackable
from vitattack.models.blocks.attended import AttentionRead, Readable, received_layers
from vitattack.models.victim import Victim
from vitattack.threats.base import per_row
from vitattack.threats.lp import LpBall
from vitattack.threats.patch import Patch, PatchBall


@dataclass(frozen=True)
class AttentionDrawn(Gradient):
    """Ascent of a loss and, where that does not oppose it, of the attention that the tokens under the patch receive."""

    weight: float = 0.002
    backwards_per_step: ClassVar[int] = 2

    def gradient(self, victim: Attackable, loss: Tensor, x_adv: Tensor, ball: LpBall) -> Tensor:
        assert isinstance(victim, AttentionRead) and isinstance(ball, PatchBall)
        (grad,) = torch.autograd.grad(loss.sum(), x_adv, retain_graph=True)
        inside = ball.inside(x_adv)
        drawn = attention_on(victim.received, inside) + 0 * loss.sum()  # through the output, where passes are counted
        (towards,) = torch.autograd.grad(drawn, x_adv)
        towards = without_conflict(towards.nan_to_num(0.0, 0.0, 0.0) * inside, grad.nan_to_num(0.0, 0.0, 0.0) * inside)
        return grad + self.weight * towards


def attention_on(received: list[Tensor], inside: Tensor) -> Tensor:
    """The sum, over images and layers, of the logarithm of the attention that tokens under the patch receive."""
    logs = []
    for of_layer in received:  # (B, rows, columns)
        rows, columns = of_layer.shape[-2:]
        covered = F.adaptive_avg_pool2d(inside.to(of_layer), (rows, columns))[:, 0]
        logs.append((of_layer * covered).flatten(1).sum(1).clamp_min(1e-12).log().sum())
    return torch.stack(logs).sum()


def without_conflict(towards: Tensor, grad: Tensor) -> Tensor:
    """Row by row, the first gradient without its part against the second (PCGrad, Yu et al., NeurIPS 2020)."""
    along = (towards * grad).flatten(1).sum(1)
    size = grad.flatten(1).square().sum(1).clamp_min(torch.finfo(grad.dtype).tiny)
    return towards - per_row((along / size).clamp_max(0), grad) * grad


@dataclass(frozen=True)
class PatchFool(InPatch):
    """An attack in a patch that looks at the victim's attention in all layers over patches."""

    layers: AttentionMap | None = field(default=None, compare=False, repr=False)
    readable: Mapping[int, Readable] | None = field(default=None, compare=False, repr=False)

    @property
    def traits(self) -> Traits:
        return replace(super().traits, plain_only=True)

    def prepare(self, victim: Attackable, calibration: Calibration, *, rng: SampleRng) -> PatchFool:
        if not isinstance(victim, Victim):
            raise UsageError("the attention of a model is read from a Victim: wrap the model first")
        layers = attention_layers(victim, victim.grey())
        found = received_layers(victim, layers)
        require_received(layers, found, victim.name)
        return replace(self, layers=layers, readable=found, place=self.place.prepare(victim))

    def price(self, query: PriceQuery) -> Price:
        return self.inner.price(query.through_view()).times(self.place.count).plus(self.place.price(query))

    def view(self, victim: Attackable) -> Attackable:
        assert isinstance(victim, Victim) and self.layers is not None and self.readable is not None
        return AttentionRead(victim, self.layers, self.readable)


@catalogued(paper="Fu et al., ICLR 2022", quick="patch_fool(steps=3)", needs_attention=True, threats=("patch",))
def patch_fool(
    threat: Patch,
    *,
    place: Place = MostAttention(),
    steps: int = 100,
    step: float = 0.1,
    weight: float = 0.002,
    loss: AnyLoss = CrossEntropy(),
    start: Start = Uniform(),
    stop: Literal["first_success", "never"] = "first_success",
) -> PatchFool:
    """Patch-Fool: PGD in the patch that receives most attention, which also climbs the attention that it receives.

    The attention is that of all queries and heads in every layer that attends from patches to patches, and counts with
    `weight`; of its gradient, the part against that of the loss is taken out. The paper takes 250 steps of Adam; here they are
    those of patch_pgd. Its patches are single tokens: --threat patch:1tokens@16px.
    """
    inner = AttentionDrawn(WHOLE_BOX, steps, Momentum(step, Cosine()), loss, start, stop, weight)
    return PatchFool(threat, place, inner)
