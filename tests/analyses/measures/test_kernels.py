"""Kernel alignment against its definition, its invariances, and values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from vitattack.analyses.measures.kernels import (
    Alignment,
    alignments,
    features_tensor,
    gram,
    hsic,
    hsic_without_each,
    kernel_alignment,
)
from vitattack.core.errors import UsageError


def drawn(n: int, width: int, seed: int) -> Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed))


def related(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    x = drawn(n, 24, seed)
    return x, torch.cat([x[:, :8] ** 2 + x[:, 8:16], drawn(n, 8, seed + 1)], 1)


def by_quadruples(k: np.ndarray, m: np.ndarray) -> float:
    """HSIC as the mean over ordered quadruples of distinct images of k_ij m_ij + k_ij m_qr - 2 k_ij m_iq."""
    n, total, count = len(k), 0.0, 0
    for i in range(n):
        for j in range(n):
            for q in range(n):
                for r in range(n):
                    if len({i, j, q, r}) == 4:
                        total += k[i, j] * m[i, j] + k[i, j] * m[q, r] - 2 * k[i, j] * m[i, q]
                        count += 1
    return total / count


def test_hsic_is_the_mean_over_quadruples_of_distinct_images() -> None:
    x, y = related(7)
    assert hsic(gram(x), gram(y)) == pytest.approx(by_quadruples(gram(x), gram(y)), rel=1e-10)


def test_a_pair_by_hand() -> None:
    # Inner products, not centred: x = (1, 1, 0, 0) has one pair that agrees; y = (1, 1, 1, 0) has three.
    k, m = np.zeros((4, 4)), np.zeros((4, 4))
    k[0, 1] = k[1, 0] = 1
    for i, j in ((0, 1), (0, 2), (1, 2)):
        m[i, j] = m[j, i] = 1
    # tr(KL) = 2; sums 2 and 6; row sums (1, 1, 0, 0) and (2, 2, 2, 0), so 1'KL1 = 4.
    assert hsic(k, m) == pytest.approx((2 + 2 * 6 / (3 * 2) - 2 * 4 / 2) / (4 * 1))
    assert hsic(k, k) == pytest.approx((2 + 4 / 6 - 2) / 4)
    assert hsic(m, m) == pytest.approx((6 + 36 / 6 - 12) / 4)
    # The last is 0: three that are alike are told from one as badly as chance would have it, and alignment is undefined.
    assert math.isnan(alignments([k], [m])[0][0].value)


def test_features_are_aligned_with_themselves_rotated_and_scaled() -> None:
    x, y = related(64)
    turn = torch.linalg.qr(drawn(24, 24, 5).double()).Q
    assert kernel_alignment(x, x) == pytest.approx(1, abs=1e-12)
    assert kernel_alignment(x, 3.7 * x.double() @ turn) == pytest.approx(1, abs=1e-9)
    assert kernel_alignment(x.double() @ turn * 0.01 + 5, y) == pytest.approx(kernel_alignment(x, y), abs=1e-9)
    assert 0.1 < kernel_alignment(x, y) < 0.9
    skewed = x * torch.logspace(0, 1.5, 24)
    assert abs(kernel_alignment(x, skewed) - 1) > 0.05, "only isotropic scaling leaves it as it is"


def test_independent_features_have_none_on_average() -> None:
    # The biased estimate of 32 images in 200 dimensions would be near 1.
    found = [kernel_alignment(drawn(32, 200, seed), drawn(32, 200, 1000 + seed)) for seed in range(40)]
    assert abs(np.mean(found)) < 4 * np.std(found) / math.sqrt(40) + 1e-9
    assert abs(np.mean(found)) < 0.05


def test_256_images_in_batches_equal_all_at_once() -> None:
    x, y = related(256)
    whole = kernel_alignment(x, y)
    batched = features_tensor(x.split(48)), features_tensor(y.split(48))
    found = alignments([gram(batched[0])], [gram(batched[1])])[0][0]
    assert found.value == pytest.approx(whole, abs=1e-5)
    k, m = (np.array(gram(f)) for f in (x, y))
    centred = [np.where(np.eye(256, dtype=bool), 0, each) for each in (k, m)]
    ones = np.ones(256)

    def formula(a: np.ndarray, b: np.ndarray) -> float:
        trace = np.trace(a @ b) + (ones @ a @ ones) * (ones @ b @ ones) / (255 * 254) - 2 / 254 * ones @ a @ b @ ones
        return float(trace / (256 * 253))

    by_formula = formula(*centred) / math.sqrt(formula(centred[0], centred[0]) * formula(centred[1], centred[1]))
    assert whole == pytest.approx(by_formula, abs=1e-9)


def test_minibatches_are_averaged_before_they_are_divided_and_do_not_drift() -> None:
    x, y = related(1024)
    parts = [alignments([gram(a)], [gram(b)])[0][0] for a, b in zip(x.split(64), y.split(64), strict=True)]
    total = sum(parts[1:], parts[0])
    assert total.minibatches == 16 and total.images == 1024
    low, high = total.interval
    assert low < kernel_alignment(x, y) < high
    assert high - low < 0.1


def test_leaving_each_image_out_equals_computing_without_it() -> None:
    x, y = related(9)
    k, m = gram(x), gram(y)
    found = hsic_without_each(k, m)
    for i in range(9):
        rest = [j for j in range(9) if j != i]
        assert found[i] == pytest.approx(hsic(k[np.ix_(rest, rest)], m[np.ix_(rest, rest)]), rel=1e-9)


def test_intervals_cover_what_they_should() -> None:
    truth = kernel_alignment(*related(2000, seed=999))
    inside = 0
    for seed in range(60):
        x, y = related(64, seed=10 * seed)
        low, high = alignments([gram(x)], [gram(y)])[0][0].interval
        inside += low <= truth <= high
    assert inside >= 50, "95 % intervals, of which the linearised jackknife covers a little less for 64 images"


def test_too_few_images_and_constant_features() -> None:
    with pytest.raises(UsageError, match="3 images are too few"):
        kernel_alignment(drawn(3, 5, 0), drawn(3, 5, 1))
    assert math.isnan(kernel_alignment(torch.ones(8, 5), drawn(8, 5, 1)))
    constant = alignments([gram(torch.ones(8, 5))], [gram(drawn(8, 5, 1))])[0][0]
    assert constant.interval == (-1.0, 1.0)
    assert Alignment(1, 4, (1.0, 1.0, 1.0), (math.nan,) * 9).interval == (-1.0, 1.0)
