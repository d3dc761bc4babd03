"""FMN in rounds: towards each of the likeliest wrong classes in turn, then on from the nearest success."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from vitattack.attacks.catalogue import EVERY_LP, catalogued
from vitattack.attacks.gradient.sparse_apgd import FIRST_SHARE, changed_features, sparse_step, sparser_share
from vitattack.attacks.losses.base import of_class, wrong_classes
from vitattack.attacks.minimum_norm.best_so_far import Stop
from vitattack.attacks.minimum_norm.published_fmn import DUAL, FMN, LAST_GAMMA
from vitattack.attacks.minimum_norm.walk import Rows, View, furthest
from vitattack.core.errors import UsageError
from vitattack.threats.base import per_row
from vitattack.threats.lp import LpBall, l2_norms, unit_l2
from vitattack.threats.sparse import L0Ball


class Pace(NamedTuple):
    """Steps of a norm: their first length in sizes of the perturbation, the share left at the end, momentum, and classes."""

    alpha: float
    end: float = 0.01
    momentum: float = 0.0
    targets: int = 6


PACES = {
    "linf": Pace(2.0),
    "l2": Pace(2.0),
    "l1": Pace(3.0, momentum=0.5, targets=4),
    "l0": Pace(10.0, end=0.03, momentum=0.5, targets=4),
}
STEPS_PER_CLASS, MOST_CLASSES = 50, 9  # of long runs, which have time for more classes
SHORTEST = 4  # steps of a round; where a tenth is less, all steps are of the last one
FASTEST, SLOWEST = 4.0, 0.25  # a radius changes by at most and at least these multiples of gamma


class Place(NamedTuple):
    """Where in the rounds a step is: the number of the round, the steps before this one in it, and all of its steps."""

    round: int
    t: int
    steps: int


@dataclass(frozen=True)
class FMNInRounds(FMN):
    """FMN whose steps are multiples of the perturbation, and whose radius is that of the linearised boundary.

    A tenth of the steps leads from the image towards any wrong class, as much towards the second likeliest, and so on for
    `targets` classes; all other steps go on from the nearest success of these rounds. In linf steps follow the signs of
    the gradient, and in l1 those of the last round the signs of its largest entries, fewer of them than the nearest success has
    changes. In l0 the linearised boundary is as many changes away as it takes when the most useful features go to their
    limits first.
    """

    targets: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.targets < 1:
            raise UsageError("fmn needs at least 1 target")

    @property
    def name(self) -> str:
        return "fmn"

    def begin(self, x: Tensor, logits: Tensor, y: Tensor) -> Rows:
        none = x.new_full((len(x),), math.inf)
        fresh = self._fresh(x) | {"nearest": x, "nearest_size": none}
        return fresh | {"goals": wrong_classes(logits, y)[:, : self.targets], "goal": torch.full_like(y, -1)}

    def _fresh(self, x: Tensor) -> dict[str, Tensor]:
        """What a round begins with: its radius, the smallest success in it, and its mean gradient."""
        radius = x.new_full((len(x),), 1.0 if self.ball.norm == "l0" else math.inf)
        mean = {"mean": torch.zeros_like(x)} if PACES[self.ball.norm].momentum else {}
        return {"radius": radius, "smallest": x.new_full((len(x),), math.inf), **mean}

    def _place(self, t: int, targets: int) -> Place:
        each = self.steps // 10
        before_last = each * targets if each >= SHORTEST else 0
        if t < before_last:
            return Place(t // each, t % each, each)
        return Place(targets, t - before_last, self.steps - before_last)

    def objective(self, logits: Tensor, y: Tensor, x: Tensor, point: Tensor, rows: Rows) -> Tensor:
        lead = super().objective(logits, y, x, point, rows)
        goal = rows["goal"]
        return (of_class(logits, goal.clamp_min(0)) - of_class(logits, y)).where(goal >= 0, lead)

    def step(self, x: Tensor, point: Tensor, rows: Rows, seen: View, t: int) -> tuple[Tensor, Rows]:
        targets = rows["goals"].shape[1]
        place, following = self._place(t, targets), self._place(t + 1, targets)
        size = seen.size.where(seen.success, math.inf)
        nearer = per_row(size < rows["nearest_size"], x)
        rows = {
            **rows,
            "smallest": rows["smallest"].minimum(size),
            "nearest": point.where(nearer, rows["nearest"]),
            "nearest_size": rows["nearest_size"].minimum(size),
        }
        if following.round == place.round:
            return self._within_round(x, point, rows, seen, place)
        if following.round < targets:
            return x, {**rows, **self._fresh(x), "goal": rows["goals"][:, following.round]}
        found = rows["nearest_size"].isfinite()
        last = self._fresh(x) | {
            "goal": torch.full_like(rows["goal"], -1),
            "radius": rows["nearest_size"].where(found, rows["radius"]),
            "smallest": rows["nearest_size"],
        }
        return rows["nearest"].where(per_row(found, x), point), {**rows, **last}

    def _within_round(self, x: Tensor, point: Tensor, rows: Rows, seen: View, place: Place) -> tuple[Tensor, Rows]:
        pace = PACES[self.ball.norm]
        cosine = (1 + math.cos(math.pi * place.t / place.steps)) / 2
        gamma = LAST_GAMMA + (self.gamma - LAST_GAMMA) * cosine
        change = self._changed_count if self.ball.norm == "l0" else self._changed_radius
        radius = change(x, point, rows, seen, gamma).minimum(furthest(self.ball, x))
        grad, mean = seen.grad, {}
        if pace.momentum:
            grad = pace.momentum * rows["mean"] + unit_l2(seen.grad)
            mean = {"mean": grad}
        falling = pace.end + (1 - pace.end) * cosine
        length = self.alpha * falling
        if self.ball.norm == "linf":
            moved = point + per_row(length * radius, x) * grad.sign()
        elif self.ball.norm == "l1" and place.round == rows["goals"].shape[1]:
            moved = point + sparse_step(grad, self._share(x, point, rows), falling * radius)
        else:
            far = l2_norms(point - x)
            scale = radius if self.ball.norm == "l2" else far.where(far > 0, radius.clamp_max(1.0))
            moved = point + per_row(length * scale, x) * unit_l2(grad)
        return self._within(x, moved, radius), {**rows, **mean, "radius": radius}

    def _share(self, x: Tensor, point: Tensor, rows: Rows) -> Tensor:
        """(B,) the share of the features that a step of the last round in l1 moves."""
        best = rows["nearest"].where(per_row(rows["nearest_size"].isfinite(), x), point)
        return sparser_share(changed_features(x, best), x).where((best != x).flatten(1).any(1), FIRST_SHARE)

    def _changed_radius(self, x: Tensor, point: Tensor, rows: Rows, seen: View, gamma: float) -> Tensor:
        """The distance of the linearised boundary, as far as the radius may change at once."""
        slope = torch.linalg.vector_norm(seen.grad.flatten(1), DUAL[self.ball.norm], dim=1)
        gap = seen.value.abs() / slope.clamp_min(1e-12)
        radius, smallest = rows["radius"], rows["smallest"]
        nearer = (seen.size - gap).maximum(smallest * (1 - FASTEST * gamma)).minimum(smallest * (1 - SLOWEST * gamma))
        grown = radius * (1 + gamma)
        further = (seen.size + gap).minimum(grown).maximum(radius * (1 + SLOWEST * gamma))
        # without a success yet; where the box cuts steps off, the boundary seems too near for ever
        first = (seen.size + gap).maximum(grown.where(radius.isfinite(), torch.zeros_like(grown)))
        changed: Tensor = nearer.where(seen.success, further.where(smallest.isfinite(), first))
        return changed

    def _changed_count(self, x: Tensor, point: Tensor, rows: Rows, seen: View, gamma: float) -> Tensor:
        """The same for a number of changes, which is always below that of the smallest success."""
        radius, smallest = rows["radius"], rows["smallest"]
        count = self._needed(x, point, seen)
        below = smallest - 1
        smaller = (radius - 1).minimum((radius * (1 - gamma)).floor()).minimum(below)
        smaller = smaller.minimum(count.maximum((smallest * (1 - FASTEST * gamma)).floor()))
        larger = (radius + 1).maximum((radius * (1 + gamma)).floor())
        larger = larger.minimum(below).where(smallest.isfinite(), larger.maximum(count))
        return smaller.where(seen.success, larger).clamp_min(0)

    def _needed(self, x: Tensor, point: Tensor, seen: View) -> Tensor:
        """The fewest changes of the image that reach the linearised boundary inside the box."""
        assert isinstance(self.ball, L0Ball)
        missing = -(seen.value + (seen.grad * (x - point)).flatten(1).sum(1))
        room = torch.where(seen.grad > 0, 1 - x, x)
        gains = self.ball.grouped(seen.grad.abs() * room).sort(dim=1, descending=True).values.cumsum(1)
        return (gains < missing[:, None]).sum(1).to(x) + 1


@catalogued(paper="Pintor et al., NeurIPS 2021", quick="fmn(steps=8)", threats=EVERY_LP, draws=False)
def fmn(
    ball: LpBall,
    *,
    steps: int = 100,
    targets: int | None = None,
    alpha: float | None = None,
    gamma: float = 0.05,
    stop: Stop = "first_success",
    preset: Literal["default", "paper"] = "default",
) -> FMN:
    """A small perturbation in any norm: steps on the margin inside a ball that follows the decision boundary.

    First towards each of the `targets` likeliest classes (6, in l1 and l0 4, one in 50 steps of long runs up to 9), then
    on from the nearest success. `alpha` is the first step in sizes of the perturbation, except in the last part in l1, whose
    first step is as long as the radius; `gamma` is the first share by which the ball changes. preset=paper is FMN as
    published, where `alpha` is a length in l2. stop=never goes on for the smallest perturbation.
    """
    if preset == "paper":
        if targets is not None:
            raise UsageError("fmn(preset=paper) has no targets: leave one of the two out")
        return FMN(ball, steps, stop, 1.0 if alpha is None else alpha, gamma)
    pace = PACES[ball.norm]
    if targets is None:
        targets = min(max(pace.targets, steps // STEPS_PER_CLASS), MOST_CLASSES)
    return FMNInRounds(ball, steps, stop, pace.alpha if alpha is None else alpha, gamma, targets)
