"""The grid of spatial transforms, and in which order to try it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitattack.errors import UsageError
from vitattack.spatial import Spatial

MOST = 1_000_000


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

    def learned_order(self, fooled: Sequence[Sequence[bool]], margins: Sequence[float]) -> list[int]:
        """From who is fooled by each coarse point, and by what mean margin: greedily, then by interpolated rates.

        Of the coarse points comes next the one that fools most of those images no point before it fools; the order
        of the rest follows the rates between the coarse points.
        """
        coarse = self.coarse()
        rates = [sum(row) for row in fooled]
        left, head, covered = set(range(len(coarse))), [], set[int]()
        while left:
            gains = {at: sum(hit and i not in covered for i, hit in enumerate(fooled[at])) for at in left}
            at = max(left, key=lambda at: (gains[at], rates[at], margins[at], -at))
            if gains[at] == 0 and covered:
                covered = set()  # everybody who can be is fooled: cover them once more
                continue
            covered |= {i for i, hit in enumerate(fooled[at]) if hit}
            head.append(coarse[at])
            left.remove(at)
        scores = list(zip(self._between(rates), self._between(margins), self._distances, strict=True))
        return self._ordered(head, scores)

    def _ordered(self, head: list[int], scores: Sequence[Any]) -> list[int]:
        """The head, then the rest by falling score."""
        tail = sorted(set(range(len(self))) - set(head), key=lambda n: (scores[n], -n), reverse=True)
        return head + tail

    def _between(self, values: Sequence[float]) -> list[float]:
        """Values at the coarse points, interpolated to all."""
        sides = [min(3, self.shape[0]), min(3, self.shape[1])]
        at = torch.tensor(values, dtype=torch.float64).view(1, 1, *sides, -1)
        smooth = F.interpolate(at, size=self.shape, mode="trilinear", align_corners=True)
        return [round(value, 9) for value in smooth.flatten().tolist()]

    @property
    def _distances(self) -> list[float]:
        """Of each point from the identity, in shares of the range."""
        squares = torch.cartesian_prod(*(_axis(count, 1.0) ** 2 for count in self.shape)).sum(1)
        return [round(value, 9) for value in squares.tolist()]


def _axis(count: int, most: float) -> Tensor:
    """An odd number of points from -most to most, exactly zero in the middle."""
    half = count // 2
    return torch.arange(-half, half + 1, dtype=torch.float64) * most / max(half, 1)
