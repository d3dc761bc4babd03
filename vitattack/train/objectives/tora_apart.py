"""Phase 1 of TORA-ViT (Li and Xu, CVPR 2023): each adapter learns from its own loss, and the fusion from both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, Self

import torch.nn.functional as F
from torch import Tensor, nn

from vitattack.attacks.base import Attack
from vitattack.core.errors import UsageError
from vitattack.core.rng import SampleRng
from vitattack.models.architectures.tora import ToraViT
from vitattack.models.architectures.tora_layers import Side
from vitattack.models.base import Attackable
from vitattack.threats.lp import LpBall
from vitattack.train.objectives.base import Objective, checked_smoothing
from vitattack.train.objectives.trade_off import default_rob

OTHER: dict[Side, Side] = {"acc": "rob", "rob": "acc"}


@dataclass(frozen=True)
class ToraApart(Objective):
    """The objective `rob` for the robustness adapter plus clean cross-entropy for the accuracy adapter.

    An adapter comes with its token and its head. The fusion learns from both losses. `predict` says whose logits a loss
    is of: those of the adapter's own head, or the joint ones. With `gates=own` all weight is on the adapter that learns.
    """

    rob: Objective
    smoothing: float = 0.0
    predict: Literal["own", "joint"] = "own"
    gates: Literal["learned", "own"] = "learned"

    @property
    def robust_share(self) -> float:
        return 0.5

    @property
    def inner_attack(self) -> Attack | None:
        return self.rob.inner_attack

    def craft(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Tensor:
        with self._training(victim, "rob"):
            return self.rob.craft(victim, x, y, rng=rng)

    def loss(self, victim: Attackable, x: Tensor, x_adv: Tensor, y: Tensor) -> Tensor:
        with self._training(victim, "rob"):
            robust = self.rob.loss(victim, x, x_adv, y)
        return robust + self._accurate(victim, x, y)

    def craft_and_loss(self, victim: Attackable, x: Tensor, y: Tensor, *, rng: SampleRng) -> Tensor:
        with self._training(victim, "rob"):
            robust = self.rob.craft_and_loss(victim, x, y, rng=rng)
        return robust + self._accurate(victim, x, y)

    def limited(self, eps: float) -> Self:
        return replace(self, rob=self.rob.limited(eps))

    def _accurate(self, victim: Attackable, x: Tensor, y: Tensor) -> Tensor:
        with self._training(victim, "acc"):
            return F.cross_entropy(victim(x), y, label_smoothing=self.smoothing)

    @contextmanager
    def _training(self, victim: Attackable, side: Side) -> Iterator[None]:
        """Let a graph that is built meanwhile reach everything trainable except what the other side owns."""
        model = two_sided(victim)
        others = [parameter for parameter in owned(model, OTHER[side]) if parameter.requires_grad]
        head, forced = model.head, model.forced
        try:
            for parameter in others:
                parameter.requires_grad_(False)
            model.head = side if self.predict == "own" else "joint"
            if self.gates == "own":
                model.force(side)
            yield
        finally:
            model.head = head
            model.force(forced)
            for parameter in others:
                parameter.requires_grad_(True)


def two_sided(victim: nn.Module) -> ToraViT:
    """The TORA-ViT with two adapters inside a victim."""
    model = next((module for module in victim.modules() if isinstance(module, ToraViT)), None)
    if model is None or not len(model.layers):
        raise UsageError("tora_apart trains the two adapters of a TORA-ViT: use arch=tora:..., without tuning=")
    return model


def owned(model: ToraViT, side: Side) -> list[nn.Parameter]:
    """Adapters, token and head of one side."""
    return [parameter for name, parameter in model.named_parameters() if side in name.split(".")]


def tora_apart(
    ball: LpBall,
    *,
    rob: Objective | None = None,
    smoothing: float = 0.0,
    predict: Literal["own", "joint"] = "own",
    gates: Literal["learned", "own"] = "learned",
) -> ToraApart:
    """Both adapters of a TORA-ViT, each on its own loss: `rob` for the one, clean cross-entropy for the other.

    `rob` is fgsm(kind=rs) unless given. predict=joint takes both losses of the joint prediction, gates=own gives all
    weight to the adapter that learns; `smoothing` is that of the clean labels.
    """
    return ToraApart(rob or default_rob(ball), checked_smoothing(smoothing), predict, gates)
