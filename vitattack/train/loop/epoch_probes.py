"""Probes after every epoch: accuracies on held-out images, and gaps and gradients of the attention softmax."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitattack.attacks.base import Attack
from vitattack.attacks.gradient.variants import fgsm_rs, pgd
from vitattack.attacks.losses.base import is_correct
from vitattack.core.progress import Counter
from vitattack.core.rng import SampleRng
from vitattack.models.attention.attention_map import AttentionMap
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.attention.projections import query_and_key_weights
from vitattack.models.attention.tap import AttentionTap, Seen
from vitattack.models.base import Attackable
from vitattack.models.victim import Victim, frozen
from vitattack.threats.lp import LpBall
from vitattack.train.data.batch import as_float
from vitattack.train.distributed import Processes

BATCH = 256
ATTENTION_IMAGES = 16


@dataclass(frozen=True)
class AccuracyProbe:
    """Accuracies on held-out images; the first `attacked` of them face PGD-10 and one-step FGSM."""

    x: Tensor
    y: Tensor
    ball: LpBall
    attacked: int

    def measure(
        self, view: Attackable, processes: Processes, progress: Counter = lambda done, total: None
    ) -> dict[str, float]:
        """Clean, PGD-10 and one-step accuracy, and the share of outputs that are not finite if there are any.

        The processes share the images.
        """
        n, m = len(self.x), min(self.attacked, len(self.x))
        if n == 0:
            return {}
        rows = range(processes.shard.rank, n, processes.shard.world)
        own = len(range(processes.shard.rank, m, processes.shard.world))
        total = len(rows) + 2 * own
        progress(0, total)
        clean, broken = self._count(view, rows, processes.device)
        numbers, done = [float(broken), float(clean)], len(rows)
        progress(done, total)
        attacks: list[Attack] = [pgd(self.ball, steps=10, step=0.25), fgsm_rs(self.ball)] if m else []
        attacked = [row for row in rows if row < m]
        for attack in attacks:
            numbers.append(float(self._count(view, attacked, processes.device, attack)[0]))
            done += own
            progress(done, total)
        not_finite, *totals = processes.sum(numbers)
        accuracies = {"clean": totals[0] / n} | dict(
            zip(("robust", "one_step"), (t / m for t in totals[1:]), strict=False)
        )
        return accuracies | ({"not_finite": not_finite / n} if not_finite else {})

    def _count(
        self, view: Attackable, rows: Iterable[int], device: torch.device, attack: Attack | None = None
    ) -> tuple[int, int]:
        """Correctly classified images, and images whose output is not finite."""
        rows, right, broken = list(rows), 0, 0
        for at in range(0, len(rows), BATCH):
            piece = rows[at : at + BATCH]
            x, y = as_float(self.x[piece].to(device)), self.y[piece].to(device)
            if attack is not None:
                x = attack(view, x, y, rng=SampleRng(0, tuple(piece))).x_adv
            with frozen(view), torch.no_grad():
                logits = view(x)
            right += int(is_correct(logits, y).sum())
            broken += int((~torch.isfinite(logits).all(1)).sum())
        return right, broken


class AttentionProbe:
    """Gaps of the attention softmax, and the gradient that reaches queries and keys, on a few images."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x[:ATTENTION_IMAGES], y[:ATTENTION_IMAGES]

    def measure(self, plain: Victim) -> dict[str, float]:
        """Quantiles of the gaps and extremes of the gradient norms; empty without attention or images."""
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
        ordered = torch.cat(gaps)
        ordered = ordered[torch.isfinite(ordered)].sort().values
        wanted = {"gap_median": 0.5, "gap_p99": 0.99} if len(ordered) else {}
        quantiles = {name: _quantile(ordered, q) for name, q in wanted.items()}
        norms = self._query_gradients(plain, layers, x, y)
        return quantiles | ({"qk_grad_min": min(norms), "qk_grad_max": max(norms)} if norms else {})

    def _query_gradients(self, plain: Victim, layers: AttentionMap, x: Tensor, y: Tensor) -> list[float]:
        """Norm of the mean loss's gradient in the query and key weights of each attention layer."""
        modules = dict(plain.named_modules())
        norms = []
        per_layer = [query_and_key_weights(modules[layer.name]) for layer in layers.layers if layer.name in modules]
        every = [(weight, rows) for pair in per_layer for weight, rows in pair]
        if not every:
            return []
        with frozen(plain):
            weights = [weight.requires_grad_(True) for weight, _ in every]
            try:
                grads = torch.autograd.grad(F.cross_entropy(plain(x), y), weights, allow_unused=True)
            finally:
                for weight in weights:
                    weight.requires_grad_(False)
        sizes = iter(
            float(g[:rows].norm()) if g is not None else math.nan for g, (_, rows) in zip(grads, every, strict=True)
        )
        for pair in per_layer:
            parts = [next(sizes) for _ in pair]
            if parts:
                norms.append(math.sqrt(sum(v * v for v in parts)))
        return [v for v in norms if math.isfinite(v)]


def _quantile(ordered: Tensor, q: float) -> float:
    return float(ordered[min(len(ordered) - 1, int(q * len(ordered)))])
