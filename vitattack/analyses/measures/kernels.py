"""Centred kernel alignment of features by minibatches, from unbiased HSIC, with its sampling error.

Kornblith et al. (ICML 2019) for the measure, Song et al. (JMLR 2012) for the unbiased estimator, and Nguyen et al. (ICLR 2021)
for minibatches, over which estimates of HSIC are averaged before they are divided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitattack.analyses.measures.doubles import in_double
from vitattack.core.errors import UsageError
from vitattack.records.stats import Z95

Array: TypeAlias = NDArray[np.float64]
LEAST = 4  # images that the unbiased estimator needs


def gram(features: Tensor) -> Array:
    """The (n, n) inner products of the features of n images, without the diagonal, in double precision."""
    flat = in_double(features.flatten(1))
    flat = flat - flat.mean(0)  # changes no result, and keeps digits where features share a large mean
    products: Array = (flat @ flat.T).cpu().numpy()
    np.fill_diagonal(products, 0.0)
    return products


def hsic(one: Array, two: Array) -> float:
    """The unbiased estimate of HSIC from two Gram matrices without diagonals (HSIC_1 of Song et al., Eq. 5)."""
    n = len(one)
    if n < LEAST:
        raise UsageError(f"{n} images are too few for an unbiased kernel alignment: use at least {LEAST}")
    rows, others = one.sum(1), two.sum(1)
    return _combined(n, float((one * two).sum()), float(rows.sum() * others.sum()), float(rows @ others))


def _combined(n: int, traces: float, sums: float, through: float) -> float:
    return (traces + sums / ((n - 1) * (n - 2)) - 2 * through / (n - 2)) / (n * (n - 3))


def hsic_without_each(one: Array, two: Array) -> Array:
    """The estimates with each image left out in turn, in closed form; NaN where too few images would be left."""
    n = len(one)
    if n <= LEAST:
        return np.full(n, math.nan)
    rows, others = one.sum(1), two.sum(1)
    products = (one * two).sum(1)
    traces = float((one * two).sum()) - 2 * products
    sums = (rows.sum() - 2 * rows) * (others.sum() - 2 * others)
    through = rows @ others - rows * others - one @ others - two @ rows + products
    m = n - 1
    values: Array = (traces + sums / ((m - 1) * (m - 2)) - 2 * through / (m - 2)) / (m * (m - 3))
    return values


@dataclass(frozen=True)
class Alignment:
    """Sums over minibatches for one pair of features: HSIC of the pair and of each side, and how they vary together."""

    minibatches: int
    images: int
    hsic: tuple[float, float, float]  # of the pair, of the first, of the second
    spread: tuple[float, ...]  # 3 x 3 covariance of the sums above, by rows

    def __add__(self, other: Alignment) -> Alignment:
        return Alignment(
            self.minibatches + other.minibatches,
            self.images + other.images,
            tuple(a + b for a, b in zip(self.hsic, other.hsic, strict=True)),  # type: ignore[arg-type]
            tuple(a + b for a, b in zip(self.spread, other.spread, strict=True)),
        )

    @property
    def value(self) -> float:
        """Kernel alignment; NaN if a side does not vary."""
        pair, first, second = self.hsic
        return pair / math.sqrt(first * second) if first > 0 and second > 0 else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval over images, by the jackknife, linearised."""
        pair, first, second = self.hsic
        value = self.value
        if not math.isfinite(value) or pair == 0:
            return -1.0, 1.0
        slope = np.array([1 / pair, -0.5 / first, -0.5 / second]) * value
        variance = float(slope @ np.array(self.spread).reshape(3, 3) @ slope)
        half = Z95 * math.sqrt(max(0.0, variance)) if math.isfinite(variance) else 2.0
        return max(-1.0, value - half), min(1.0, value + half)


def alignments(first: Sequence[Array], second: Sequence[Array]) -> list[list[Alignment]]:
    """The sums of one minibatch for every pair of features, from their Gram matrices."""
    own = [(hsic(each, each), hsic_without_each(each, each)) for each in first]
    others = own if second is first else [(hsic(each, each), hsic_without_each(each, each)) for each in second]
    return [[_alignment(a, b, own[i], others[j]) for j, b in enumerate(second)] for i, a in enumerate(first)]


def _alignment(one: Array, two: Array, own: tuple[float, Array], other: tuple[float, Array]) -> Alignment:
    n = len(one)
    without = np.stack([hsic_without_each(one, two), own[1], other[1]])
    moved = without - without.mean(1, keepdims=True)
    spread = (n - 1) / n * moved @ moved.T
    return Alignment(1, n, (hsic(one, two), own[0], other[0]), tuple(float(v) for v in spread.flatten()))


def kernel_alignment(one: Tensor, two: Tensor) -> float:
    """Linear CKA of the features of the same images, all at once."""
    return alignments([gram(one)], [gram(two)])[0][0].value


def features_tensor(parts: Sequence[Tensor]) -> Tensor:
    """Features of the batches of one minibatch put together."""
    return torch.cat([part.flatten(1) for part in parts])
