"""Products read as one einsum: which axes are summed, and where the others go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from vitattack.models.attention.contractions import contractions

A, B = torch.rand(2, 3, 4, 5), torch.rand(2, 3, 5, 6)
Call = tuple[str, Callable[..., Tensor], tuple[Any, ...], dict[str, Any]]

# (name, function, arguments, options), summed axes of each operand
CASES: list[tuple[Call, tuple[tuple[int, ...], ...]]] = [
    (("matmul", torch.matmul, (A, B), {}), ((3,), (2,))),
    (("matmul", torch.matmul, (A, B[0, 0]), {}), ((3,), (0,))),
    (("matmul", torch.matmul, (A, B[0, 0, :, 0]), {}), ((3,), (0,))),
    (("matmul", torch.matmul, (A[0, 0, 0], B), {}), ((0,), (2,))),
    (("mm", torch.mm, (A[0, 0], B[0, 0]), {}), ((1,), (0,))),
    (("mv", torch.mv, (A[0, 0], B[0, 0, :, 0]), {}), ((1,), (0,))),
    (("bmm", torch.bmm, (A[0], B[0]), {}), ((2,), (1,))),
    (("baddbmm", torch.baddbmm, (torch.rand(3, 4, 6), A[0], B[0]), {}), ((2,), (1,))),
    (("addmm", torch.addmm, (torch.rand(4, 6), A[0, 0], B[0, 0]), {}), ((1,), (0,))),
    (("tensordot", torch.tensordot, (A[0], B[0]), {"dims": ([0, 2], [0, 1])}), ((0, 2), (0, 1))),
    (("tensordot", torch.tensordot, (A[0, 0], B[0, 0], 1), {}), ((1,), (0,))),
    (("inner", torch.inner, (A, torch.rand(7, 5)), {}), ((3,), (1,))),
    (("linalg_vecdot", torch.linalg.vecdot, (A, torch.rand(2, 3, 4, 5)), {"dim": -1}), ((3,), (3,))),
    (("linear", torch.nn.functional.linear, (A, torch.rand(7, 5)), {}), ((3,), (1,))),
    (("einsum", torch.einsum, ("...ij,...jd->...id", A, B), {}), ((3,), (2,))),
    (("einsum", torch.einsum, ("b h i j, b h j d -> b i h d", A, B), {}), ((3,), (2,))),
    (("einsum", torch.einsum, ("bhij,bhjd", A, B), {}), ((0, 1, 3), (0, 1, 2))),
    (("einsum", torch.einsum, ("bhij,hg->bgij", A, torch.rand(3, 3)), {}), ((1,), (0,))),
    (("einsum", torch.einsum, ("...ij,jd->d...i", A, B[0, 0]), {}), ((3,), (0,))),
    (("einsum", torch.einsum, (A, [..., 0, 1], B, [..., 1, 2], [..., 0, 2]), {}), ((3,), (2,))),
    (("einsum", torch.einsum, ("bhij->bhi", A), {}), ((),)),
]


def varies(label: Tensor, axis: int) -> bool:
    return bool((label != label.narrow(axis, 0, 1)).any())


@pytest.mark.parametrize(("call", "summed"), CASES)
def test_summed_axes_are_named_and_the_others_followed(call: Call, summed: tuple[tuple[int, ...], ...]) -> None:
    name, func, args, kwargs = call
    out = func(*args, **kwargs)
    found = contractions(name, args, kwargs, out)
    assert [one.axes for one in found] == list(summed)
    for one in found:
        for axis, size in enumerate(one.operand.shape):
            sizes = [1] * one.operand.dim()
            sizes[axis] = size
            places = torch.arange(size).view(sizes).expand(one.operand.shape)
            moved = one.kept(places, varies)
            if axis in one.axes or axis in one.alone:
                assert moved is None
                continue
            assert moved is not None and moved.shape == out.shape
            # the same product with one slice of the operand is that slice of the product
            kept = one.operand.clone()
            kept[places == size - 1] += 1
            again = func(*(kept if arg is one.operand else arg for arg in args), **kwargs)
            assert torch.equal((again - out).abs() > 1e-6, moved == size - 1)


def test_what_cannot_be_read_is_no_product() -> None:
    assert (
        contractions("einsum", ("ii->i", A[0, 0, :3, :3]), {}, torch.rand(3))[0].kept(torch.rand(3, 3), varies) is None
    )
    assert contractions("einsum", (object(),), {}, torch.rand(3)) == []
    assert contractions("matmul", (), {}, torch.rand(3)) == []
    assert contractions("matmul", (A, B), {}, None) == []
