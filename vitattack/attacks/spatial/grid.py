"""Grid of spatial transforms, and the order in which to try them."""

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
# Points picked greedily, at a cost proportional to the grid; the rest is sorted.
GREEDY = 500
# Images that a point in a corner of the range is assumed to fool beyond those observed.
BONUS = 3.0
# Factor on the weight of an image each time a point that fools it is picked.
COVERED = 0.25


@dataclass(frozen=True)
class TransformGrid:
    """Equally spaced horizontal and vertical shifts and angles, numbered with the angle running fastest.

    Counts are odd, so that the identity is a point of the grid. An axis with an empty range has one point.
    """

    moves: bool
    turns: bool
    shifts_wanted: int
    angles_wanted: int

    def __post_init__(self) -> None:
        for name, count in (("shifts", self.shifts_wanted), ("angles", self.angles_wanted)):
            if count < 1 or count % 2 == 0:
                raise UsageError(f"{name}={count}: use an odd number, so that the identity is among them")
        if len(self) > MOST:
            raise UsageError(f"a grid of {len(self)} transforms is too large: use at most {MOST}")

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
        """Points without rotation."""
        return frozenset(range(self.shape[2] // 2, len(self), self.shape[2]))

    @cached_property
    def rotations(self) -> frozenset[int]:
        """Points without shift."""
        first = self.identity - self.shape[2] // 2
        return frozenset(range(first, first + self.shape[2]))

    def table(self, threat: Spatial, x: Tensor) -> Tensor:
        """(N, 3) tx, ty and angle of all points, for images of this size."""
        reach = (*threat.reach(x), threat.angle)
        return torch.cartesian_prod(*(_axis(count, most) for count, most in zip(self.shape, reach, strict=True)))

    def coarse(self) -> list[int]:
        """Up to 3 x 3 x 7 points spread over the grid."""
        axes = [sorted({0, n // 2, n - 1}) for n in self.shape[:2]]
        turns = self.shape[2]
        axes.append(sorted({round(k * (turns - 1) / 6) for k in range(7)}))
        return [(i * self.shape[1] + j) * turns + k for i, j, k in product(*axes)]

    def fixed_order(self) -> list[int]:
        """Coarse points first; within each part the farthest from the identity first."""
        distances = self._distances
        return self._ordered(sorted(self.coarse(), key=lambda n: (-distances[n], n)), distances)

    def learned_order(self, margins: Tensor) -> list[int]:
        """Greedy order from the margins of calibration images, (coarse points, images): next the point that fools most.

        Margins between coarse points are interpolated. Images lose weight with every point that fools them, so that picks
        differ, and far points get a bonus for images that no point fools here.
        """
        fools = (self._between(margins) > 0).double()
        weights = torch.ones(fools.shape[1], dtype=torch.float64)
        bonus = torch.tensor(self._distances, dtype=torch.float64) * BONUS / 3
        order: list[int] = []
        taken = torch.zeros(len(self), dtype=torch.bool)
        for _ in range(min(len(self), GREEDY)):
            point = int((fools @ weights + bonus).masked_fill(taken, -1).argmax())
            order.append(point)
            taken[point] = True
            weights = torch.where(fools[point] > 0, weights * COVERED, weights)
        return self._ordered(order, (fools.sum(1) + bonus).tolist())

    def _ordered(self, head: list[int], scores: Sequence[float]) -> list[int]:
        """Append the points missing from the head by descending score."""
        tail = sorted(set(range(len(self))) - set(head), key=lambda n: (-scores[n], n))
        return head + tail

    def _between(self, margins: Tensor) -> Tensor:
        """Interpolate (coarse points, images) to (N, images)."""
        images = margins.shape[1]
        if images == 0:
            return margins.new_zeros(len(self), 0)
        sides = (min(3, self.shape[0]), min(3, self.shape[1]))
        coarse = margins.double().T.reshape(images, 1, *sides, -1).nan_to_num(0, 0, 0)
        smooth = F.interpolate(coarse, size=self.shape, mode="trilinear", align_corners=True)
        return smooth.reshape(images, -1).T

    @property
    def _distances(self) -> list[float]:
        """Distance of each point from the identity, relative to the range."""
        squares = torch.cartesian_prod(*(_axis(count, 1.0) ** 2 for count in self.shape)).sum(1)
        return [round(value, 9) for value in squares.tolist()]


def _axis(count: int, most: float) -> Tensor:
    """An odd number of points from -most to most, exactly zero in the middle."""
    half = count // 2
    return torch.arange(-half, half + 1, dtype=torch.float64) * most / max(half, 1)
