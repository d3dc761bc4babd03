"""Shifts and rotations: what they do to pixels, and which candidates the threat allows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vitattack.core.errors import UsageError
from vitattack.threats.base import parse_threat
from vitattack.threats.spatial import Spatial, transform, transforms


def noise(n: int = 2, height: int = 16, width: int = 16, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(n, 3, height, width, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def moved(x: Tensor, tx: float = 0.0, ty: float = 0.0, angle: float = 0.0) -> Tensor:
    return transform(x, *(torch.full((len(x),), value, dtype=x.dtype) for value in (tx, ty, angle)))


def named(x: Tensor, tx: float = 0.0, ty: float = 0.0, angle: float = 0.0) -> dict[str, Tensor]:
    return {name: torch.full((len(x),), v, dtype=x.dtype) for name, v in (("tx", tx), ("ty", ty), ("angle", angle))}


# What a transform does.


@pytest.mark.parametrize("size", [(16, 16), (9, 20), (21, 8), (1, 5)])
def test_the_identity_changes_no_bit(size: tuple[int, int]) -> None:
    x = noise(2, *size)
    assert torch.equal(moved(x), x)
    mixed = transform(x, torch.tensor([0.0, 1.5]), torch.zeros(2), torch.zeros(2))
    assert torch.equal(mixed[0], x[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [(16, 16), (9, 20)])
def test_whole_shifts_move_pixels_by_hand(size: tuple[int, int], dtype: torch.dtype) -> None:
    x = noise(2, *size, dtype=dtype)
    close = 1e-5 if dtype == torch.float32 else 1e-12
    right = moved(x, tx=3)  # shows what was three pixels further right
    assert torch.allclose(right[..., :-3], x[..., 3:], atol=close)
    assert float(right[..., -3:].max()) <= close  # black
    down = moved(x, ty=-2)
    assert torch.allclose(down[..., 2:, :], x[..., :-2, :], atol=close)
    assert float(down[..., :2, :].max()) <= close
    half = moved(x, tx=0.5)
    assert torch.allclose(half[..., :-1], (x[..., 1:] + x[..., :-1]) / 2, atol=close)
    assert torch.allclose(half[..., -1], x[..., -1] / 2, atol=close)  # half of it black


def test_a_quarter_turn_is_a_quarter_turn() -> None:
    x = noise(2, 15, 15, dtype=torch.float64)
    # R(90) takes (1, 0), right, to (0, 1), down: the right of the result shows the bottom of the image
    assert torch.allclose(moved(x, angle=90), torch.rot90(x, 1, (2, 3)), atol=1e-9)
    assert torch.allclose(moved(x, angle=180), x.flip(2, 3), atol=1e-9)
    assert torch.allclose(moved(x, angle=-90), torch.rot90(x, -1, (2, 3)), atol=1e-9)


def test_pixels_are_square_on_images_that_are_not() -> None:
    """A quarter turn of a wide image shows its central square turned, nothing stretched, and black above and below."""
    x = noise(1, 9, 15, dtype=torch.float64)
    turned = moved(x, angle=90)
    assert torch.allclose(turned[..., 3:12], torch.rot90(x[..., 3:12], 1, (2, 3)), atol=1e-9)
    assert float(turned[..., :3].max()) < 1e-9 and float(turned[..., 12:].max()) < 1e-9


def test_rotation_comes_before_the_shift_in_the_frame_of_the_image() -> None:
    x = torch.zeros(1, 1, 21, 21, dtype=torch.float64)
    x[0, 0, 10, 14] = 1.0  # four right of the centre
    shown = moved(x, tx=4, angle=90)  # reads R p + (4, 0): p = 0 reads the dot
    assert (shown[0, 0] > 0.5).nonzero().tolist() == [[10, 10]]
    shown = moved(x, tx=1, angle=90)  # (x, y) -> (-y, x) + (1, 0) = (4, 0): p = (0, -3)
    assert (shown[0, 0] > 0.5).nonzero().tolist() == [[7, 10]]


def test_a_constant_image_stays_constant_away_from_the_border() -> None:
    x = torch.full((1, 3, 41, 41), 0.7, dtype=torch.float64)
    for tx, ty, angle in ((5.0, -5.0, 30.0), (0.3, 2.6, -17.0)):
        shown = moved(x, tx, ty, angle)
        assert torch.allclose(shown[..., 13:28, 13:28], x[..., 13:28, 13:28], atol=1e-12)
        assert shown[0, 0, 0, 0] < 0.7 or shown[0, 0, -1, -1] < 0.7  # a corner turned away is black
        assert float(shown.min()) >= 0 and float(shown.max()) <= 0.7 + 1e-12


@pytest.mark.parametrize("angle", [2.0, 14.0, 30.0])
def test_a_rotation_and_its_inverse_give_a_smooth_image_back(angle: float) -> None:
    y, x = torch.meshgrid(torch.linspace(0, 3, 64).double(), torch.linspace(0, 3, 64).double(), indexing="ij")
    smooth = (0.5 + 0.4 * torch.sin(x + 0.5 * y))[None, None]
    back = moved(moved(smooth, angle=angle), angle=-angle)
    inner = (..., slice(16, 48), slice(16, 48))
    assert float((back - smooth)[inner].abs().max()) < 1e-3  # bilinear reading twice
    assert float((moved(smooth, angle=angle) - smooth)[inner].abs().max()) > 0.003 * angle  # it did turn


@pytest.mark.parametrize("size", [(32, 32), (384, 384), (50, 30)])
def test_all_images_under_each_transform_are_the_same_pixels(size: tuple[int, int]) -> None:
    """The attack makes its candidates the one way, the judge the other; noise is the hardest image to agree on."""
    x = noise(3, *size, seed=4)
    tx, ty, angle = (torch.tensor(values) for values in ([0.0, 3.3, -16], [0.0, -7.1, 16], [0.0, 13.7, -30]))
    together = transforms(x, tx, ty, angle)
    assert together.shape == (3, 3, 3, *size)
    for t in range(3):
        for b in range(3):
            alone = moved(x[b : b + 1], float(tx[t]), float(ty[t]), float(angle[t]))
            assert torch.equal(together[t, b], alone[0])


def test_single_precision_is_near_double() -> None:
    x = noise(1, 64, 64, dtype=torch.float64)
    near = moved(x.float(), 3.7, -2.2, 21.0)
    assert near.dtype == torch.float32 and torch.allclose(near.double(), moved(x, 3.7, -2.2, 21.0), atol=2e-5)


def test_no_images_and_no_transforms() -> None:
    none = torch.zeros(0)
    assert transform(noise(0), none, none, none).shape == (0, 3, 16, 16)
    assert transforms(noise(2), none, none, none).shape == (0, 2, 3, 16, 16)
    assert transforms(noise(0), *(torch.ones(2),) * 3).shape == (2, 0, 3, 16, 16)


# What is allowed.


def test_what_the_evidence_names_is_allowed_within_range() -> None:
    x = noise(4)
    threat = Spatial(3.0, 10.0)
    for tx, ty, angle, expected in (
        (3.0, -3.0, 10.0, True),
        (0.1, 2.0, -9.9, True),  # any point of the range, not only those of a grid
        (3.001, 0.0, 0.0, False),
        (0.0, -3.001, 0.0, False),
        (0.0, 0.0, 10.001, False),
    ):
        allowed = threat.allows(x, moved(x, tx, ty, angle), named(x, tx, ty, angle))
        assert allowed.tolist() == [expected] * 4, (tx, ty, angle)


def test_a_candidate_that_is_not_the_named_transform_is_not_allowed() -> None:
    x, threat = noise(5), Spatial(3.0, 10.0)
    x_adv = moved(x, 2.0, 1.0, 5.0)
    x_adv[1, 0, 4, 4] += 1e-3  # one pixel
    x_adv[2, 0, 4, 4] = float("nan")
    x_adv[3] = moved(x[3:4], -2.0, -1.0, -5.0)[0]  # the inverse
    x_adv[4] = x_adv[0]  # of another image
    assert threat.allows(x, x_adv, named(x, 2.0, 1.0, 5.0)).tolist() == [True, False, False, False, False]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e30])
@pytest.mark.parametrize("name", ["tx", "ty", "angle"])
def test_hostile_evidence_is_not_allowed(name: str, bad: float) -> None:
    x, threat = noise(3), Spatial()
    evidence = named(x)
    evidence[name][1] = bad
    assert threat.allows(x, x, evidence).tolist() == [True, False, True]
    x_adv = moved(x, **{name: bad})  # even if it is what the transform would make of it
    assert not threat.allows(x, x_adv, evidence)[1]


def test_evidence_of_the_wrong_shape_is_not_allowed() -> None:
    x, threat = noise(3), Spatial()
    assert not threat.allows(x, x, named(x[:2])).any()
    assert not threat.allows(x, x, {**named(x), "tx": torch.zeros(3, 3)}).any()
    assert threat.allows(x[:0], x[:0], named(x[:0])).shape == (0,)
    assert threat.allows(x, x, {name: rows.long() for name, rows in named(x).items()}).all()


def test_without_evidence_only_the_image_itself_is_allowed() -> None:
    x, threat = noise(2), Spatial()
    x_adv = x.clone()
    x_adv[1, 0, 0, 0] += 1e-6
    assert threat.allows(x, x_adv).tolist() == [True, False]
    assert threat.allows(x, x_adv, {"tx": torch.zeros(2)}).tolist() == [True, False]


def test_images_outside_the_box_are_not_allowed() -> None:
    x = noise(1) * 2
    assert not Spatial().allows(x, x, named(x)).any()


def test_percent_scale_with_the_input_and_with_each_side() -> None:
    threat = Spatial(12.5, 0.0, "%")
    assert threat.reach(noise(1, 16, 40)) == (5.0, 2.0)
    x = noise(2, 16, 40)
    assert threat.allows(x, moved(x, 5.0, 2.0), named(x, 5.0, 2.0)).all()
    assert not threat.allows(x, moved(x, 2.0, 5.0), named(x, 2.0, 5.0)).any()


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("spatial", "spatial:16px,30deg"),
        ("spatial:16px,30deg", "spatial:16px,30deg"),
        (" spatial: 16.0px , 30 deg ", "spatial:16px,30deg"),
        ("spatial:4.1666667%,0deg", "spatial:4.1666667%,0deg"),
        ("spatial:0.00001px,2.50deg", "spatial:1e-05px,2.5deg"),
    ],
)
def test_spatial_threats_have_one_text(text: str, canonical: str) -> None:
    assert str(parse_threat(text)) == canonical
    assert parse_threat(canonical) == parse_threat(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("spatial:16", "is not understood: write spatial"),
        ("spatial:-1px,30deg", "is not understood"),
        ("spatial:nanpx,30deg", "is not understood"),
        ("spatial:16px,30deg,5deg", "is not understood"),
        ("spatial:16px,200deg", "angles of 0 to 180"),
        ("spatial:101%,3deg", "0 to 100 %"),
        (f"spatial:{'9' * 400}px,3deg", "0 to 10000 px"),
    ],
)
def test_unclear_spatial_threats_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_threat(text)
    assert len(str(caught.value).splitlines()) == 1
