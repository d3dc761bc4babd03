"""What is looked at after every epoch, and when it is a reason to stop."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitattack.attacks.base import Attack
from vitattack.attacks.gradient.variants import fgsm_rs, pgd
from vitattack.attacks.losses import correct
from vitattack.core.errors import VitattackError
from vitattack.core.rng import SampleRng
from vitattack.models.attention.map import AttentionMap
from vitattack.models.attention.probe import attention_layers
from vitattack.models.attention.projections import query_and_key_weights
from vitattack.models.attention.tap import AttentionTap, Seen
from vitattack.models.base import Attackable
from vitattack.models.victim import Victim, frozen
from vitattack.threats.lp import LpBall
from vitattack.train.data.batch import as_float
from vitattack.train.loop.distributed import Team

BATCH = 256
ATTENTION_IMAGES = 16
# One-step accuracy beyond PGD's by this much, with PGD below this share of its best: the one-step gradient lies.
GAP, LOST = 0.2, 0.5
LEAST = 0.1  # what was never won, as under a budget that still grows, cannot be lost


class Stopped(VitattackError):
    """Training went wrong in a way that more training does not mend."""


@dataclass(frozen=True)
class Probe:
    """Held-out images; the first `attacked` of them meet PGD-10 and one step of FGSM."""

    x: Tensor
    y: Tensor
    ball: LpBall
    attacked: int

    def look(self, view: nn.Module, team: Team) -> dict[str, float]:
        """Clean, PGD-10 and one-step accuracy, shared among the processes."""
        n, m = len(self.x), min(self.attacked, len(self.x))
        if n == 0:
            return {}
        mine = range(team.shard.rank, n, team.shard.world)
        clean = self._correct(view, mine, team.device)
        numbers = [float(clean)]
        attacks: list[Attack] = [pgd(self.ball, steps=10, step=0.25), fgsm_rs(self.ball)] if m else []
        few = [row for row in mine if row < m]
        numbers += [float(self._correct(view, few, team.device, attack)) for attack in attacks]
        totals = team.total(numbers)
        found = {"clean": totals[0] / n}
        return found | dict(zip(("robust", "one_step"), (t / m for t in totals[1:]), strict=False))

    def _correct(self, view: nn.Module, rows: Iterable[int], device: torch.device, attack: Attack | None = None) -> int:
        rows, count = list(rows), 0
        for at in range(0, len(rows), BATCH):
            piece = rows[at : at + BATCH]
            x, y = as_float(self.x[piece].to(device)), self.y[piece].to(device)
            if attack is not None:
                assert isinstance(view, Attackable)
                x = attack(view, x, y, rng=SampleRng(0, tuple(piece))).x_adv
            with frozen(view), torch.no_grad():
                count += int(correct(view(x), y).sum())
        return count


class AttentionProbe:
    """Gaps of the attention softmax, and how much gradient reaches queries and keys, on a few images."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x[:ATTENTION_IMAGES], y[:ATTENTION_IMAGES]

    def look(self, plain: Victim) -> dict[str, float]:
        """Nothing for a model without attention, or without images."""
        layers = attention_layers(plain, plain.grey())
        if not len(layers) or not len(self.x):
            return {}
        x, y = as_float(self.x.to(plain.mean.device)), self.y.to(plain.mean.device)
        gaps: list[Tensor] = []

        def observe(seen: Seen) -> None:
            top = seen.scores().topk(2, dim=-1).values
            gaps.append((top[..., 0] - top[..., 1]).flatten())

        with frozen(plain), torch.no_grad(), AttentionTap(layers, observe=observe):
            plain(x)
        every = torch.cat(gaps)
        every = every[torch.isfinite(every)].sort().values
        found = {"gap_median": _quantile(every, 0.5), "gap_p99": _quantile(every, 0.99)}
        norms = self._query_gradients(plain, layers, x, y)
        return found | ({"qk_grad_min": min(norms), "qk_grad_max": max(norms)} if norms else {})

    def _query_gradients(self, plain: Victim, layers: AttentionMap, x: Tensor, y: Tensor) -> list[float]:
        """Per attention layer, the norm of the gradient of the mean loss in the weights that make queries and keys."""
        modules = dict(plain.named_modules())
        norms = []
        chosen = [query_and_key_weights(modules[layer.name]) for layer in layers.layers if layer.name in modules]
        asked = [(weight, rows) for pair in chosen for weight, rows in pair]
        if not asked:
            return []
        with frozen(plain):
            weights = [weight.requires_grad_(True) for weight, _ in asked]
            try:
                grads = torch.autograd.grad(F.cross_entropy(plain(x), y), weights, allow_unused=True)
            finally:
                for weight in weights:
                    weight.requires_grad_(False)
        sizes = iter(
            float(g[:rows].norm()) if g is not None else math.nan for g, (_, rows) in zip(grads, asked, strict=True)
        )
        for pair in chosen:
            parts = [next(sizes) for _ in pair]
            if parts:
                norms.append(math.sqrt(sum(v * v for v in parts)))
        return [v for v in norms if math.isfinite(v)]


def _quantile(ordered: Tensor, q: float) -> float:
    return float(ordered[min(len(ordered) - 1, int(q * len(ordered)))]) if len(ordered) else math.nan


@dataclass
class Watch:
    """Remembers the best numbers so far and says when they are lost for good."""

    num_classes: int
    attacking: bool = True  # without attacks in training, robust accuracy is nothing to lose
    clean: float = 0.0
    robust: float = 0.0

    def check(self, numbers: dict[str, float]) -> str | None:
        """Why to stop, or None."""
        loss, clean, robust = numbers["loss"], numbers.get("clean"), numbers.get("robust")
        if not math.isfinite(loss):
            return "the loss is NaN or infinite: lower the learning rate, add grad_clip(1.0) or use precision=fp32"
        chance = 1 / self.num_classes
        if clean is not None:
            if self.clean > 3 * chance and clean < max(1.5 * chance, 0.4 * self.clean):
                return (
                    f"clean accuracy collapsed from {self.clean:.1%} to {clean:.1%}: lower the learning rate, "
                    "or warm up the budget with eps_warmup"
                )
            self.clean = max(self.clean, clean)
        if robust is not None:
            one_step = numbers.get("one_step", robust)
            lost = self.robust > LEAST and robust < LOST * self.robust
            if self.attacking and lost and one_step - robust > GAP:
                return (
                    f"catastrophic overfitting: PGD-10 leaves {robust:.1%} (once {self.robust:.1%}), one step "
                    f"{one_step:.1%}: use fgsm(kind=n) with more noise, or pgd_at with 2 steps"
                )
            self.robust = max(self.robust, robust)
        return None

    def doubt(self, numbers: dict[str, float]) -> str | None:
        """What may be overfitting from the first epoch on, or a model that has just begun to be attacked: no reason to stop."""
        robust = numbers.get("robust")
        if robust is None or not self.attacking or self.robust > LEAST:
            return None
        one_step = numbers.get("one_step", robust)
        if one_step - robust <= GAP:
            return None
        return (
            f"one step leaves {one_step:.1%} and PGD-10 {robust:.1%}, which never was above {LEAST:.0%}: if this stays, "
            "one-step gradients lie from the start; use fgsm(kind=n) with more noise, or pgd_at with 2 steps"
        )

    def state_dict(self) -> dict[str, Any]:
        return {"clean": self.clean, "robust": self.robust}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.clean, self.robust = state["clean"], state["robust"]
