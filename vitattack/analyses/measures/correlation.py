"""Pearson correlation of the outputs of blocks over all images, tokens and channels, from sums that add up over batches.

`|rho|` of "Understanding Robustness of Transformers for Image Classification" (Bhojanapalli et al., ICCV 2021, Fig. 7).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitattack.analyses.measures.doubles import in_double
from vitattack.records.stats import Z95

Array: TypeAlias = NDArray[np.float64]
# Per image and pair: entries, sums of both, their squares and their product.
COUNT, X, Y, XX, YY, XY = range(6)


def pair_sums(one: Tensor, two: Tensor) -> Array:
    """(B, 6) sums over the entries of two features of the same shape, image by image, in double precision."""
    a, b = (in_double(feature.flatten(1)) for feature in (one, two))
    count = a.new_full((len(a),), a.shape[1])
    columns = [count, a.sum(1), b.sum(1), (a * a).sum(1), (b * b).sum(1), (a * b).sum(1)]
    return np.stack([column.cpu().numpy() for column in columns], 1)


def moments(sums: Array) -> tuple[Array, Array]:
    """What is kept of the sums of many images: their total (6,), and the total of their outer products (6, 6)."""
    return sums.sum(0), sums.T @ sums


def correlation(total: Array) -> float:
    """|rho| from summed sums; NaN where one side is constant."""
    n, x, y, xx, yy, xy = total
    a, b, together = xx - x * x / n, yy - y * y / n, xy - x * y / n
    limit = 1e-12
    if a <= limit * xx or b <= limit * yy:
        return math.nan
    return float(min(1.0, abs(together) / math.sqrt(a * b)))


def correlation_interval(total: Array, products: Array) -> tuple[float, float]:
    """The 95 % interval of |rho| over images, by the delta method on the sums of each image; one image says nothing."""
    images = (
        total[COUNT] ** 2 / products[COUNT, COUNT] if products[COUNT, COUNT] > 0 else 0.0
    )  # of equally many entries
    value = correlation(total) if images > 1.5 else math.nan
    if not math.isfinite(value):
        return 0.0, 1.0
    n, x, y, xx, yy, xy = total
    a, b, together = xx - x * x / n, yy - y * y / n, xy - x * y / n
    root = math.sqrt(a * b)
    sign = math.copysign(1.0, together)
    # Gradient of the signed correlation with respect to the totals, as a ratio of homogeneous functions of degree one.
    d_together = np.array([x * y / n**2, -y / n, -x / n, 0.0, 0.0, 1.0])
    d_a = np.array([x * x / n**2, -2 * x / n, 0.0, 1.0, 0.0, 0.0])
    d_b = np.array([y * y / n**2, 0.0, -2 * y / n, 0.0, 1.0, 0.0])
    slope = sign * (d_together / root - 0.5 * together / root * (d_a / a + d_b / b))
    # The statistic does not change if all sums are multiplied, so the slope is orthogonal to the total: no centring needed.
    variance = float(slope @ products @ slope) * images / (images - 1)
    half = Z95 * math.sqrt(max(0.0, variance))
    return max(0.0, value - half), min(1.0, value + half)


def correlation_matrix(features: Sequence[Tensor]) -> Array:
    """|rho| of every pair of features; NaN where shapes differ."""
    count = len(features)
    found = np.full((count, count), math.nan)
    for i, one in enumerate(features):
        for j, two in enumerate(features):
            if one.shape == two.shape:
                found[i, j] = correlation(pair_sums(one, two).sum(0))
    return found
