"""How attention scales are found: by climbing a distance to the original model, by the letter of Algorithm 1, or drawn.

The LPIPS of "Adaptive Attention Scaling" (CVPR 2024) is a distance between two *models* on one image, taken in
the victim's own block outputs. The paper leaves much open; every choice is an option here, and `literal` and `robust`
(the defaults of the class) are two sets of choices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from vitattack.attacks.losses.base import best_wrong, of_class
from vitattack.core.errors import UsageError, VitattackError
from vitattack.core.rng import SampleRng
from vitattack.models.attention.features import Tap, block_features, eq3_distance, tapped_modules, unit_distance
from vitattack.models.attention.map import AttentionMap
from vitattack.models.attention.tap import AttentionTap
from vitattack.models.victim import Victim, frozen

Objective = Literal["unit", "lpips", "ce", "margin", "gama"]
Per = Literal["layer", "head"]
Look = tuple[list[Tensor], Tensor]  # block features and logits
Bounds = tuple[Tensor, Tensor]  # the least and the largest scale of every layer


class Candidate(NamedTuple):
    """One set of scales, how far it went, and how large the gradient was that moved it (mean over steps)."""

    scales: Tensor  # (L,) or (L, H)
    distances: tuple[float, ...] = ()
    gradient: float = 0.0


class Search(Protocol):
    @property
    def per(self) -> Per: ...

    @property
    def candidates(self) -> int:
        """How many sets of scales it gives."""

    @property
    def learns(self) -> bool:
        """Whether other images decide about the scales."""
        return False

    @property
    def images(self) -> int:
        """How many calibration images the search itself reads."""
        return 0

    def __call__(
        self, victim: Victim, layers: AttentionMap, x: Tensor, y: Tensor, *, rng: SampleRng
    ) -> list[Candidate]: ...


def shape_of(layers: AttentionMap, per: Per) -> tuple[int, ...]:
    """Of the scales of a model."""
    return (len(layers),) if per == "layer" else (len(layers), max(layer.heads for layer in layers.layers))


def _only(scales: Tensor, blocks: tuple[int, ...] | None) -> Tensor:
    """Ones outside the chosen layers."""
    if blocks is None:
        return scales
    wrong = [b for b in blocks if not 0 <= b < len(scales)]
    if wrong:
        raise UsageError(f"block {wrong[0]} of a model with {len(scales)} attention layers: use 0 to {len(scales) - 1}")
    keep = torch.zeros(len(scales), dtype=torch.bool, device=scales.device)
    keep[list(blocks)] = True
    return torch.where(keep.view(-1, *[1] * (scales.dim() - 1)), scales, torch.ones_like(scales))


@dataclass(frozen=True)
class Uniform(Search):
    """The same factor in every layer, one candidate per value."""

    values: tuple[float, ...]
    blocks: tuple[int, ...] | None = None
    per: Per = "layer"

    @property
    def learns(self) -> bool:
        return len(self.values) > 1

    @property
    def candidates(self) -> int:
        return len(self.values)

    def __post_init__(self) -> None:
        if not self.values or any(not (math.isfinite(v) and v > 0) for v in self.values):
            raise UsageError(f"scales {self.values} are no positive numbers: use for example 0.5")

    def __call__(
        self, victim: Victim, layers: AttentionMap, x: Tensor, y: Tensor, *, rng: SampleRng
    ) -> list[Candidate]:
        return [
            Candidate(_only(torch.full(shape_of(layers, self.per), v, device=x.device), self.blocks))
            for v in self.values
        ]


@dataclass(frozen=True)
class Given(Search):
    """Scales found before, one candidate per row."""

    values: tuple[tuple[float, ...], ...]
    per: Per = "layer"

    @property
    def candidates(self) -> int:
        return len(self.values)

    def __post_init__(self) -> None:
        if not self.values or any(not (math.isfinite(v) and v > 0) for row in self.values for v in row):
            raise UsageError("given scales must be positive numbers, at least one set of them")

    def __call__(
        self, victim: Victim, layers: AttentionMap, x: Tensor, y: Tensor, *, rng: SampleRng
    ) -> list[Candidate]:
        for row in self.values:
            if len(row) not in (len(layers), len(layers) + 1):  # one more for the logits
                raise UsageError(f"{len(row)} scales for the {len(layers)} attention layers of '{victim.name}'")
        return [Candidate(torch.tensor(row, device=x.device)) for row in self.values]


@dataclass(frozen=True)
class Climb(Search):
    """Scales moved uphill by a distance between the scaled model and a reference.

    `space` log: s = exp(u), u starts at -|N(0, spread^2)|, clipped to the range. `space` linear: s = clamp(S + d), d
    starts at N(0, spread^2). With `redraw` every batch starts anew from the scales of the last one (Algorithm 1);
    otherwise one state climbs through all batches. With steps = 0 this is the prior alone: the random control.
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
    include_logits: bool = False  # one factor more, on the output logits

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
            raise UsageError("a scale search needs at least one restart, batch and image, and no negative steps")
        if not 0 < self.lower <= self.init_scale <= self.upper or not math.isfinite(self.upper):
            raise UsageError(
                f"scales from {self.lower:g} to {self.upper:g} must be positive and hold {self.init_scale:g}"
            )

    def __call__(
        self, victim: Victim, layers: AttentionMap, x: Tensor, y: Tensor, *, rng: SampleRng
    ) -> list[Candidate]:
        count, *heads = shape_of(layers, self.per)
        ones = torch.ones((count + self.include_logits, *heads), device=x.device)
        here = (ones, ones * self.init_scale, self.lower * ones, self.upper * ones)
        with frozen(victim):
            return [self._restart(victim, layers, x, y, rng.child("search", r), *here) for r in range(self.restarts)]

    def near(
        self, victim: Victim, layers: AttentionMap, x: Tensor, y: Tensor, start: Tensor, most: float, *, rng: SampleRng
    ) -> Candidate:
        """One climb from the scales a model has, whose features are the reference, by at most a factor `most` each."""
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
    ) -> Candidate:
        """From `start`, within bounds; `origin` are the scales of the model as it is."""
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
            here: Look | None = None
            for _ in range(self.steps):
                reference = origin if self.reference == "original" else base
                if here is None:
                    with torch.no_grad():
                        here = self._look(victim, layers, names, images, reference)
                grad, distance = self._gradient(
                    victim, layers, names, images, labels, base, offset, here, (lower, upper)
                )
                distances.append(distance)
                sizes.append(float(grad.abs().mean()))
                offset, moments = self._move(offset, grad, moments)
                offset = self._clip(base, offset, (lower, upper))
                if self.update == "inner":
                    base = current = self._scales(base, offset, (lower, upper))
                    offset, here = torch.zeros_like(offset), here if self.reference == "original" else None
            current = self._scales(base, offset, (lower, upper))
        return Candidate(_only(current, self.blocks), tuple(distances), sum(sizes) / max(1, len(sizes)))

    def _draw(self, start: Tensor, upper: Tensor, free: bool, rng: SampleRng) -> Tensor:
        """Downwards in log space, but for a walk that goes on (`free`) and has room above it."""
        noise = rng.normal(start[None])[0] * self.spread
        if self.space == "linear":
            return noise
        return torch.where((start * noise.exp() <= upper) & free, noise, -noise.abs())

    def _cut(self, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """`batches` batches of at most `batch` images, over again where there are fewer."""
        size = min(self.batch, len(x))
        for number in range(self.batches):
            rows = torch.arange(number * size, (number + 1) * size) % len(x)
            yield x[rows], y[rows]

    def _scales(self, base: Tensor, offset: Tensor, bounds: Bounds) -> Tensor:
        return ((base.log() + offset).exp() if self.space == "log" else base + offset).clamp(*bounds)

    def _clip(self, base: Tensor, offset: Tensor, bounds: Bounds) -> Tensor:
        """In log space the state itself stays in range; Algorithm 1 lets its state run and clamps what is used."""
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
        here: Look,
        bounds: Bounds,
    ) -> tuple[Tensor, float]:
        """d distance / d offset, by default with a clamp that lets gradients through, and the distance."""
        root = base.detach().clone().requires_grad_() if self.total_derivative else base
        leaf = offset.detach().clone().requires_grad_()
        with torch.enable_grad():
            inner = self._scales(root, leaf, bounds)
            if not self.through_clamp and not self.total_derivative:
                free = (root.log() + leaf).exp() if self.space == "log" else root + leaf
                inner = free + (inner - free).detach()
            if self.total_derivative and self.reference == "previous":
                here = self._look(victim, layers, names, x, root)
            there = self._look(victim, layers, names, x, _only(inner, self.blocks))
            value = self._distance(here, there, y)
            total = value.mean() if self.reduction == "mean" else value.sum()
            (grad,) = torch.autograd.grad(total, root if self.total_derivative else leaf)
        if not torch.isfinite(grad).all():
            raise VitattackError(f"'{victim.name}' gives NaN features under scaled attention: check its weights")
        return grad, float(value.detach().mean())

    def _look(self, victim: Victim, layers: AttentionMap, names: list[str], x: Tensor, scales: Tensor) -> Look:
        def forward() -> Tensor:
            with AttentionTap(layers, rescale=scales[: len(layers)], per=self.per):
                logits: Tensor = victim(x)
            return logits * scales[-1].flatten()[0] if self.include_logits else logits

        return block_features(victim, names, self.tap, forward)

    def _distance(self, here: Look, there: Look, y: Tensor) -> Tensor:
        if self.objective in ("unit", "lpips"):
            measure = unit_distance if self.objective == "unit" else eq3_distance
            return torch.stack([measure(a, b) for a, b in zip(there[0], here[0], strict=True)]).sum(0)
        logits = there[1]
        if self.objective == "ce":
            return torch.nn.functional.cross_entropy(logits, y, reduction="none")
        if self.objective == "margin":
            return best_wrong(logits, y) - of_class(logits, y)
        q, p = logits.softmax(1), here[1].softmax(1)
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


# Algorithm 1 and Eq. 3 of the paper to the letter: raw steps of size 1 on a state redrawn for every minibatch.
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
