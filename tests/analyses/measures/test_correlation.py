"""Correlation of features from sums, against numpy and bootstrap."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from vitattack.analyses.measures.correlation import (
    correlation,
    correlation_interval,
    correlation_matrix,
    moments,
    pair_sums,
)


def pair(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    each = torch.rand(n, 1, 1, generator=generator)  # images differ, so that entries of one are not independent
    x = torch.randn(n, 5, 3, generator=generator) * (0.5 + each) + 4
    return x, -0.6 * x + each + 0.5 * torch.randn(n, 5, 3, generator=generator)


def test_sums_give_the_correlation_of_all_entries_however_they_are_batched() -> None:
    x, y = pair(256)
    expected = abs(np.corrcoef(x.flatten().numpy(), y.flatten().numpy())[0, 1])
    total = sum(pair_sums(a, b).sum(0) for a, b in zip(x.split(48), y.split(48), strict=True))
    assert correlation(total) == pytest.approx(expected, abs=1e-6)  # type: ignore[arg-type]
    assert correlation(pair_sums(x, y).sum(0)) == pytest.approx(correlation(total), abs=1e-12)  # type: ignore[arg-type]


def test_a_pair_by_hand() -> None:
    # x = 1, 2, 3 and y = 1, 3, 2: covariance 1, variances 2 and 2.
    x, y = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[1.0], [3.0], [2.0]])
    assert correlation(pair_sums(x, y).sum(0)) == pytest.approx(0.5)
    assert correlation(pair_sums(x, -7 * x + 2).sum(0)) == pytest.approx(1)


def test_other_shapes_and_constants_have_no_correlation() -> None:
    found = correlation_matrix([torch.randn(4, 5, 3), torch.randn(4, 6, 3), torch.ones(4, 5, 3)])
    assert found[0, 0] == pytest.approx(1) and found[1, 1] == pytest.approx(1)
    assert math.isnan(found[0, 1]) and math.isnan(found[0, 2]) and math.isnan(found[2, 2])
    assert correlation_interval(np.zeros(6), np.zeros((6, 6))) == (0.0, 1.0)


def test_the_interval_is_that_of_a_bootstrap_over_images() -> None:
    x, y = pair(120)
    sums = pair_sums(x, y)
    low, high = correlation_interval(*moments(sums))
    rng = np.random.default_rng(0)
    draws = [correlation(sums[rng.integers(0, 120, 120)].sum(0)) for _ in range(2000)]
    assert (high - low) / 2 / 1.96 == pytest.approx(np.std(draws), rel=0.12)
    assert low < correlation(sums.sum(0)) < high
