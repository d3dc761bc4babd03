"""EigenCAM against a plain SVD, and numbers of maps against what they are of known maps."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from vitattack.analyses.measures.heatmaps import (
    centre_share,
    eigencam,
    enlarged,
    entropy,
    on_mask,
    spread,
    to_unit,
)


def blobs(channels: int = 12, size: int = 8, seed: int = 0) -> Tensor:
    """Activations of two images with one strong pattern each."""
    generator = torch.Generator().manual_seed(seed)
    x = 0.05 * torch.randn(2, channels, size, size, generator=generator)
    direction = torch.randn(2, channels, 1, 1, generator=generator)
    pattern = torch.zeros(2, 1, size, size)
    pattern[0, 0, 1:4, 2:5] = 1
    pattern[1, 0, 5:7, 1:3] = 1
    return x + direction * pattern + 3


def by_svd(activations: Tensor) -> Tensor:
    maps = []
    for image in activations.double():
        flat = image.flatten(1).T
        flat = flat - flat.mean(0)
        _, _, right = torch.linalg.svd(flat, full_matrices=False)
        projected = flat @ right[0]
        if projected.min().abs() > projected.max().abs():
            projected = -projected
        maps.append(to_unit(projected.relu().reshape(1, *image.shape[1:]))[0])
    return torch.stack(maps)


@pytest.mark.parametrize("channels", [12, 200])
def test_eigencam_is_a_plain_svd(channels: int) -> None:
    x = blobs(channels)
    found = eigencam(x)
    assert torch.allclose(found, by_svd(x), atol=1e-9)
    assert found.amin() == 0 and (found.amax((1, 2)) == 1).all()
    highest = found[0].flatten().topk(9).indices
    assert {(int(i) // 8, int(i) % 8) for i in highest} == {(r, c) for r in (1, 2, 3) for c in (2, 3, 4)}


def test_its_sign_is_settled() -> None:
    x = blobs()
    assert torch.allclose(eigencam(-x), eigencam(x), atol=1e-9), "activations turned around"
    turn = torch.linalg.qr(torch.randn(12, 12, generator=torch.Generator().manual_seed(3)).double()).Q
    assert torch.allclose(eigencam(torch.einsum("dc,bchw->bdhw", turn, x.double())), eigencam(x), atol=1e-9)


def test_a_constant_image_has_an_empty_map() -> None:
    assert eigencam(torch.ones(1, 3, 4, 4)).abs().max() == 0


def test_numbers_of_known_maps() -> None:
    even, point, corners = torch.ones(1, 8, 8), torch.zeros(1, 8, 8), torch.zeros(1, 8, 8)
    point[0, 3, 5] = 2
    corners[0, 0, 0] = corners[0, 7, 7] = 1
    maps = torch.cat([even, point, corners])
    assert entropy(maps).tolist() == pytest.approx([1, 0, math.log(2) / math.log(64)])
    # Variance of 0..7 is 63/12 = 5.25 along each axis, that of two ends 12.25.
    assert spread(maps).tolist() == pytest.approx([1, 0, math.sqrt(12.25 / 5.25)])
    assert centre_share(maps).tolist() == pytest.approx([0.25, 1, 0])
    assert centre_share(torch.ones(1, 7, 5)).tolist() == pytest.approx([0.25])


def test_overlap_with_a_mask_by_hand() -> None:
    maps = torch.tensor([[[4.0, 3.0], [2.0, 1.0]]]).repeat(3, 1, 1)
    masks = torch.tensor([[[1, 1], [0, 0]], [[1, 0], [0, 1]], [[0, 0], [0, 0]]])
    share, overlap = on_mask(maps, masks)
    assert share.tolist()[:2] == pytest.approx([0.7, 0.5]) and math.isnan(share[2])
    # Of two positions the two highest are the upper row: both of it, then one of three.
    assert overlap.tolist()[:2] == pytest.approx([1, 1 / 3]) and math.isnan(overlap[2])


def test_enlarging_keeps_a_constant() -> None:
    assert torch.allclose(enlarged(torch.ones(2, 4, 4), (32, 20)), torch.ones(2, 32, 20))
