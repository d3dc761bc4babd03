"""The grid of spatial transforms, and in which order to try it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from vitattack.core.errors import UsageError
from vitattack.threats.spatial import Spatial

MOST = 1_000_000
# So many points are picked one by one, the rest sorted: the pick of a point looks at all of them.
GREEDY = 500
# A point in a corner of the range is taken to fool this many images besides those it was seen to fool.
BONUS = 3.0
# What is left of the weight of an image each time a point that fools it is picked.
COVERED = 0.25


@dataclass(frozen=True)
class Lattice:
    """Equally spaced shifts across and down, and angles; numbered with the angle running fastest.

    The counts are odd, so that the identity is a point of it. An axis along which nothing moves has one point.
    """

    moves: bool
    turns: bool
    shifts_wanted: int
    angles_wanted: int

    def __post_init__(self) -> None:
        for name, count in (("shifts", self.shifts_wanted), ("angles", self.angles_wanted)):
            if count < 1 or count % 2 == 0:
                raise UsageError(f"{name}={count}: take an odd number, so that the unmoved image is among them")
        if len(self) > MOST:
            raise UsageError(f"a grid of {len(self)} transforms is too large: {MOST} are the most")

    @property
    def shape(self) -> tuple[int, int, int]:
        across = self.shifts_wanted if self.moves else 1
        return across, across, self.angles_wanted if self.turns else 1

    def __len__(self) -> int:
        return self.shape[0] * self.shape[1] * self.shape[2]

    @property
    def identity(self) -> int:
        return len(self) // 2

    @cached_property
    def shifts(self) -> frozenset[int]:
        """The points without rotation."""
        return frozenset(range(self.shape[2] // 2, len(self), self.shape[2]))

    @cached_property
    def rotations(self) -> frozenset[int]:
        """The points without a shift."""
        first = self.identity - self.shape[2] // 2
        return frozenset(range(first, first + self.shape[2]))

    def table(self, threat: Spatial, x: Tensor) -> Tensor:
        """(N, 3) tx, ty and angle of every point, for images of this size."""
        reach = (*threat.reach(x), threat.angle)
        return torch.cartesian_prod(*(_axis(count, most) for count, most in zip(self.shape, reach, strict=True)))

    def coarse(self) -> list[int]:
        """Up to 3 x 3 x 7 points spread over all of it."""
        axes = [sorted({0, n // 2, n - 1}) for n in self.shape[:2]]
        turns = self.shape[2]
        axes.append(sorted({round(k * (turns - 1) / 6) for k in range(7)}))
        return [(i * self.shape[1] + j) * turns + k for i, j, k in product(*axes)]

    def fixed_order(self) -> list[int]:
        """The coarse points first, and the farther from the identity the sooner."""
        distances = self._distances
        return self._ordered(sorted(self.coarse(), key=lambda n: (-distances[n], n)), distances)

    def learned_order(self, margins: Tensor) -> list[int]:
        """From the margins of some images, (coarse points, images): always the point that fools most of them next.

        Between the coarse points margins are interpolated. An image that a point before fools counts less and less, so
        that the next one is of another kind, and far points have a head start for the images that nothing here fools.
        """
        fools = (self._between(margins) > 0).double()
        weights = torch.ones(fools.shape[1], dtype=torch.float64)
        bonus = torch.tensor(self._distances, dtype=torch.float64) * BONUS / 3
        order: list[int] = []
        taken = torch.zeros(len(self), dtype=torch.bool)
        for _ in range(min(len(self), GREEDY)):
            at = int((fools @ weights + bonus).masked_fill(taken, -1).argmax())
            order.append(at)
            taken[at] = True
            weights = torch.where(fools[at] > 0, weights * COVERED, weights)
        return self._ordered(order, (fools.sum(1) + bonus).tolist())

    def _ordered(self, head: list[int], scores: Sequence[float]) -> list[int]:
        """The head, then the rest by falling score."""
        tail = sorted(set(range(len(self))) - set(head), key=lambda n: (-scores[n], n))
        return head + tail

    def _between(self, margins: Tensor) -> Tensor:
        """(N, images) from (coarse points, images)."""
        images = margins.shape[1]
        if images == 0:
            return margins.new_zeros(len(self), 0)
        sides = (min(3, self.shape[0]), min(3, self.shape[1]))
        at = margins.double().T.reshape(images, 1, *sides, -1).nan_to_num(0, 0, 0)
        smooth = F.interpolate(at, size=self.shape, mode="trilinear", align_corners=True)
        return smooth.reshape(images, -1).T

    @property
    def _distances(self) -> list[float]:
        """Of each point from the identity, in shares of the range."""
        squares = torch.cartesian_prod(*(_axis(count, 1.0) ** 2 for count in self.shape)).sum(1)
        return [round(value, 9) for value in squares.tolist()]


def _axis(count: int, most: float) -> Tensor:
    """An odd number of points from -most to most, exactly zero in the middle."""
    half = count // 2
    return torch.arange(-half, half + 1, dtype=torch.float64) * most / max(half, 1)
