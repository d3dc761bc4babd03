"""Scales found by ascent: Algorithm 1 of the AAS paper and its robust reading, with one option per open choice.

The paper's "LPIPS" is a distance between two *models* on one image, computed on block outputs of the victim. `LITERAL` is
the paper to the letter, the defaults of `Climb` are the robust reading.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vitattack.attacks.aas.scale_search import Per, ScaleSearch, ScaleSet, ones_outside, shape_of
from vitattack.attacks.losses.base import best_wrong, of_class
from vitattack.core.errors import UsageError, VitattackError
from vitattack.core.progress import in_stage
from vitattack.core.rng import SampleRng
from vitattack.models.attention.attention_map import AttentionMap
from vitattack.models.attention.features import (
    Tap,
    block_features,
    eq3_distance,
    require_comparable,
    tapped_modules,
    unit_distance,
)
from vitattack.models.attention.tap import AttentionTap
from vitattack.models.victim import Victim, frozen

Objective = Literal["unit", "lpips", "ce", "margin", "gama"]
FeaturesAndLogits = tuple[list[Tensor], Tensor]
Bounds = tuple[Tensor, Tensor]  # smallest and largest scale per layer


@dataclass(frozen=True)
class Climb(ScaleSearch):
    """Gradient ascent of a distance between the scaled model and a reference, over the scales.

    `space` log: s = exp(u), u starts at -|N(0, spread^2)|, clipped to the range. `space` linear: s = clamp(S + d), d
    starts at N(0, spread^2). With `redraw` every batch restarts from the scales of the last one (Algorithm 1);
    otherwise one state climbs through all batches. With steps = 0 the scales are drawn from the prior: the random control.
    """

    objective: Objective = "unit"
    restarts: int = 3
    batches: int = 1
    batch: int = 32
    steps: int = 10
    space: Literal["log", "linear"] = "log"
    spread: float = 0.5
    init_scale: float = 1.0
    lower: float = 1e-3
    upper: float = 1.0
    optimiser: Literal["adam", "raw", "sign"] = "adam"
    step: float = 0.05
    reference: Literal["original", "previous"] = "original"
    redraw: bool = False
    update: Literal["after", "inner"] = "after"
    through_clamp: bool = False
    total_derivative: bool = False
    reduction: Literal["mean", "sum"] = "mean"
    tap: Tap = "block"
    blocks: tuple[int, ...] | None = None
    per: Per = "layer"
    include_logits: bool = False  # one more factor, on the output logits

    @property
    def candidates(self) -> int:
        return self.restarts

    @property
    def learns(self) -> bool:
        return True

    @property
    def images(self) -> int:
        return self.batches * self.batch

    def __post_init__(self) -> None:
        if min(self.restarts, self.batches, self.batch) < 1 or self.steps < 0:
            raise UsageError("a scale search needs at least one restart, batch and image, and 0 steps or more")
        if not 0 < self.lower <= self.init_scale <= self.upper or not math.isfinite(self.upper):
            raise UsageError(
                f"scales from {self.lower:g} to {self.upper:g} must be positive and include {self.init_scale:g}"
            )

    def __call__(self, victim: Victim, layers: AttentionMap, x: Tensor, y: Tensor, *, rng: SampleRng) -> list[ScaleSet]:
        count, *heads = shape_of(layers, self.per)
        ones = torch.ones((count + self.include_logits, *heads), device=x.device)
        start, lower, upper = ones * self.init_scale, self.lower * ones, self.upper * ones
        with frozen(victim):
            return [
                self._restart(victim, layers, x, y, rng.child("search", number), ones, start, lower, upper)
                for number in in_stage("searching attention scales", range(self.restarts))
            ]

    def near(
        self, victim: Victim, layers: AttentionMap, x: Tensor, y: Tensor, start: Tensor, most: float, *, rng: SampleRng
    ) -> ScaleSet:
        """Climb once from the scales of a model, whose features are the reference, by at most a factor `most` each."""
        if not math.isfinite(most):
            bounds = (self.lower * torch.ones_like(start), self.upper * torch.ones_like(start))
        else:
            bounds = ((start / most).clamp(min=self.lower), (start * most).clamp(max=self.upper))
        with frozen(victim):
            return self._restart(victim, layers, x, y, rng.child("search", 0), start, start, *bounds)

    def _restart(
        self,
        victim: Victim,
        layers: AttentionMap,
        x: Tensor,
        y: Tensor,
        rng: SampleRng,
        origin: Tensor,
        start: Tensor,
        lower: Tensor,
        upper: Tensor,
    ) -> ScaleSet:
        """Climb from `start` within bounds; `origin` are the present scales of the model."""
        names = tapped_modules(layers, self.tap)
        ones = torch.ones_like(origin)
        current, free = start, origin is start
        offset = self._draw(start, upper, free, rng.child("batch", 0))
        moments: tuple[Tensor, Tensor, int] = (torch.zeros_like(ones), torch.zeros_like(ones), 0)
        distances: list[float] = []
        sizes: list[float] = []
        for number, (images, labels) in enumerate(self._cut(x, y)):
            if self.redraw and number:
                offset = self._draw(current, upper, free, rng.child("batch", number))
                moments = (torch.zeros_like(ones), torch.zeros_like(ones), 0)
            base = current if self.redraw else start
            reference_outputs: FeaturesAndLogits | None = None
            for _ in in_stage("steps of the search", range(self.steps)):
                reference = origin if self.reference == "original" else base
                if reference_outputs is None:
                    with torch.no_grad():
                        reference_outputs = self._outputs(victim, layers, names, images, reference)
                grad, distance = self._gradient(
                    victim, layers, names, images, labels, base, offset, reference_outputs, (lower, upper)
                )
                distances.append(distance)
                sizes.append(float(grad.abs().mean()))
                offset, moments = self._move(offset, grad, moments)
                offset = self._clip(base, offset, (lower, upper))
                if self.update == "inner":
                    base = current = self._scales(base, offset, (lower, upper))
                    offset = torch.zeros_like(offset)
                    if self.reference == "previous":
                        reference_outputs = None
            current = self._scales(base, offset, (lower, upper))
        return ScaleSet(ones_outside(current, self.blocks), tuple(distances), sum(sizes) / max(1, len(sizes)))

    def _draw(self, start: Tensor, upper: Tensor, free: bool, rng: SampleRng) -> Tensor:
        """Draw an offset: downwards in log space, unless the walk is `free` and has room above it."""
        noise = rng.normal(start[None])[0] * self.spread
        if self.space == "linear":
            return noise
        return torch.where((start * noise.exp() <= upper) & free, noise, -noise.abs())

    def _cut(self, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield `batches` batches of at most `batch` images, repeating images where there are too few."""
        size = min(self.batch, len(x))
        for number in range(self.batches):
            rows = torch.arange(number * size, (number + 1) * size) % len(x)
            yield x[rows], y[rows]

    def _scales(self, base: Tensor, offset: Tensor, bounds: Bounds) -> Tensor:
        return ((base.log() + offset).exp() if self.space == "log" else base + offset).clamp(*bounds)

    def _clip(self, base: Tensor, offset: Tensor, bounds: Bounds) -> Tensor:
        """Clip the state to the range in log space; Algorithm 1 leaves its state free and clamps the scales it uses."""
        if self.space == "linear":
            return offset
        return offset.clamp(bounds[0].log() - base.log(), bounds[1].log() - base.log())

    def _gradient(
        self,
        victim: Victim,
        layers: AttentionMap,
        names: list[str],
        x: Tensor,
        y: Tensor,
        base: Tensor,
        offset: Tensor,
        reference_outputs: FeaturesAndLogits,
        bounds: Bounds,
    ) -> tuple[Tensor, float]:
        """Gradient of the distance with respect to the offset, by default straight through the clamp, and the distance."""
        root = base.detach().clone().requires_grad_() if self.total_derivative else base
        leaf = offset.detach().clone().requires_grad_()
        with torch.enable_grad():
            inner = self._scales(root, leaf, bounds)
            if not self.through_clamp and not self.total_derivative:
                free = (root.log() + leaf).exp() if self.space == "log" else root + leaf
                inner = free + (inner - free).detach()
            if self.total_derivative and self.reference == "previous":
                reference_outputs = self._outputs(victim, layers, names, x, root)
            scaled_outputs = self._outputs(victim, layers, names, x, ones_outside(inner, self.blocks))
            if self.objective in ("unit", "lpips"):
                require_comparable(reference_outputs[0], scaled_outputs[0], len(x), victim.name)
            value = self._distance(reference_outputs, scaled_outputs, y)
            total = value.mean() if self.reduction == "mean" else value.sum()
            (grad,) = torch.autograd.grad(total, root if self.total_derivative else leaf)
        if not torch.isfinite(grad).all():
            raise VitattackError(f"'{victim.name}' has NaN features under scaled attention: check its weights")
        return grad, float(value.detach().mean())

    def _outputs(
        self, victim: Victim, layers: AttentionMap, names: list[str], x: Tensor, scales: Tensor
    ) -> FeaturesAndLogits:
        def forward() -> Tensor:
            with AttentionTap(layers, rescale=scales[: len(layers)], per=self.per):
                logits: Tensor = victim(x)
            return logits * scales[-1].flatten()[0] if self.include_logits else logits

        return block_features(victim, names, self.tap, forward)

    def _distance(self, reference_outputs: FeaturesAndLogits, scaled_outputs: FeaturesAndLogits, y: Tensor) -> Tensor:
        if self.objective in ("unit", "lpips"):
            measure = unit_distance if self.objective == "unit" else eq3_distance
            return torch.stack(
                [measure(a, b) for a, b in zip(scaled_outputs[0], reference_outputs[0], strict=True)]
            ).sum(0)
        logits = scaled_outputs[1]
        if self.objective == "ce":
            return torch.nn.functional.cross_entropy(logits, y, reduction="none")
        if self.objective == "margin":
            return best_wrong(logits, y) - of_class(logits, y)
        q, p = logits.softmax(1), reference_outputs[1].softmax(1)
        return best_wrong(q, y) - of_class(q, y) + 50 * (q - p).square().sum(1)

    def _move(
        self, offset: Tensor, grad: Tensor, moments: tuple[Tensor, Tensor, int]
    ) -> tuple[Tensor, tuple[Tensor, Tensor, int]]:
        if self.optimiser == "raw":
            return offset + self.step * grad, moments
        if self.optimiser == "sign":
            return offset + self.step * grad.sign(), moments
        first, second, t = moments
        first, second, t = 0.9 * first + 0.1 * grad, 0.999 * second + 0.001 * grad.square(), t + 1
        unbiased = first / (1 - 0.9**t), second / (1 - 0.999**t)
        return offset + self.step * unbiased[0] / (unbiased[1].sqrt() + 1e-8), (first, second, t)


# Algorithm 1 and Eq. 3 of the paper to the letter: raw steps of size 1, state redrawn for every minibatch.
LITERAL = Climb(
    objective="lpips",
    restarts=1,
    batches=4,
    steps=10,
    space="linear",
    spread=1.0,
    lower=1e-7,
    optimiser="raw",
    step=1.0,
    reference="previous",
    redraw=True,
)
