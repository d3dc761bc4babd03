"""Corruptions against closed forms, and as data sets."""

from __future__ import annotations

import colorsys
import io

import numpy as np
import pytest
import torch
from PIL import Image

from vitattack.core.errors import UsageError
from vitattack.data import check_data, load_data
from vitattack.data.corruptions import filters
from vitattack.data.corruptions.kinds import KINDS, corrupted_image
from vitattack.data.corruptions.names import MADE_HERE

SIDE = 16


def picture(seed: int = 0) -> np.ndarray:
    """A smooth image in steps of 8 bits."""
    small = np.random.default_rng(seed).integers(0, 256, (4, 4, 3)).astype(np.uint8)
    return np.asarray(Image.fromarray(small).resize((SIDE, SIDE), Image.Resampling.BICUBIC)) / 255.0


def grey(value: float, side: int = SIDE) -> np.ndarray:
    return np.full((side, side, 3), value)


def made(kind: str, severity: int, image: np.ndarray, seed: int = 0) -> np.ndarray:
    return corrupted_image(image, kind, severity, np.random.default_rng(seed))


def eight_bits(image: np.ndarray) -> np.ndarray:
    return np.floor(image * 255 + 1e-8) / 255


def test_kinds_are_those_that_have_names() -> None:
    assert list(KINDS) == list(MADE_HERE) and len(KINDS) == 17
    assert all(len(kind.small) == len(kind.large) == 5 for kind in KINDS.values())


@pytest.mark.parametrize("kind", KINDS)
def test_images_stay_images_and_worse_is_worse(kind: str) -> None:
    image = picture()
    weak, strong = ([made(kind, severity, image, seed) for seed in range(3)] for severity in (1, 5))
    for result in (*weak, *strong):
        assert result.shape == image.shape and result.min() >= 0 and result.max() <= 1
        assert np.array_equal(result * 255, np.round(result * 255))
    away = [np.mean([np.abs(result - image).mean() for result in some]) for some in (weak, strong)]
    assert away[0] > 0
    if kind not in ("saturate", "elastic_transform"):  # their severities differ in kind: paler, then more colourful
        assert away[1] > away[0]


def test_noise_has_the_variance_of_its_kind() -> None:
    half, rng = grey(128 / 255, 64), np.random.default_rng(0)
    noise = KINDS["gaussian_noise"].corrupt(half, rng, 0.08) - half
    assert abs(noise.std() - 0.08) < 0.003 and abs(noise.mean()) < 0.003
    shot = KINDS["shot_noise"].corrupt(half, rng, 100) - half  # Poisson: the variance is the mean
    assert abs(shot.var() - half[0, 0, 0] / 100) < 3e-4
    speckle = KINDS["speckle_noise"].corrupt(half, rng, 0.2) - half
    assert abs(speckle.std() - 0.2 * half[0, 0, 0]) < 0.004
    struck = KINDS["impulse_noise"].corrupt(half, rng, 0.1)
    assert abs((struck == 0).mean() - 0.05) < 0.01 and abs((struck == 1).mean() - 0.05) < 0.01
    assert abs((struck == half).mean() - 0.9) < 0.01


@pytest.mark.parametrize(
    "kind", ["gaussian_blur", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "pixelate"]
)
def test_blurs_leave_one_colour_alone(kind: str) -> None:
    for severity in (1, 5):
        assert np.abs(made(kind, severity, grey(100 / 255)) - 100 / 255).max() <= 1 / 255 + 1e-9


def test_contrast_is_the_distance_from_the_mean() -> None:
    image = picture()
    mean = image.mean((0, 1))
    assert np.array_equal(made("contrast", 2, image), eight_bits(mean + 0.5 * (image - mean)))


def test_blurs_are_those_of_their_kernels() -> None:
    point = np.zeros((SIDE, SIDE, 3))
    point[8, 8] = 1
    spread = filters.gaussian_blur(point, 1.0)[..., 0]
    weights = np.exp(-0.5 * np.arange(-4, 5) ** 2)
    weights /= weights.sum()
    assert np.allclose(spread[4:13, 4:13], np.outer(weights, weights)) and np.isclose(spread.sum(), 1)
    soft = filters.disk(1.5, 1e-3)  # hardly softened: the nine pixels within 1.5
    assert np.isclose(soft.sum(), 1) and np.allclose(soft[7:10, 7:10], 1 / 9)
    trail = filters.motion_blur(point, 2, 1.5, 0)[..., 0]
    line = np.exp(-0.5 * (np.arange(5) / 1.5) ** 2)
    assert np.allclose(trail[8, 8:3:-1], line / line.sum()) and np.isclose(trail[8].sum(), 1)


def test_zoom_and_points_between_pixels_are_linear() -> None:
    y, x = np.mgrid[:SIDE, :SIDE].astype(float)
    ramp = (2 * y + 3 * x)[..., None]
    assert np.allclose(filters.zoomed(ramp, 1.0), ramp)
    down, right = y[1:-1, 1:-1] + 0.25, x[1:-1, 1:-1] - 0.5
    assert np.allclose(filters.sampled(ramp, down, right, "reflect")[..., 0], 2 * down + 3 * right)
    twice = filters.zoomed(ramp, 2.0)[..., 0]  # the middle eight rows over sixteen
    assert twice.shape == (SIDE, SIDE) and np.allclose(np.diff(twice, axis=0), 2 * 7 / 15)
    assert np.isclose(twice[0, 0], ramp[4, 4, 0]) and np.isclose(twice[-1, -1], ramp[11, 11, 0])


def test_colours_are_those_of_colorsys() -> None:
    image = np.random.default_rng(0).random((4, 4, 3))
    image[0] = [[0, 0, 0], [1, 1, 1], [0.5, 0.5, 0.2], [0.9, 0.1, 0.9]]
    hsv = filters.to_hsv(image)
    assert np.allclose(hsv, [[colorsys.rgb_to_hsv(*pixel) for pixel in row] for row in image])
    assert np.allclose(filters.from_hsv(hsv), image)
    pale = [[colorsys.hsv_to_rgb(h, 0.1 * s, v) for h, s, v in row] for row in hsv]
    assert np.allclose(made("saturate", 2, image), eight_bits(np.array(pale)))


def test_fog_keeps_the_brightest_and_is_a_cloud() -> None:
    cloud = filters.plasma(32, 2.0, np.random.default_rng(0))
    assert cloud.min() == 0 and cloud.max() == 1 and cloud.shape == (32, 32)
    rough = filters.plasma(32, 1.2, np.random.default_rng(0))
    assert np.abs(np.diff(rough)).mean() > np.abs(np.diff(cloud)).mean()
    assert made("fog", 5, picture()).max() <= picture().max()


def test_glass_moves_pixels_of_the_image_only() -> None:
    sharp = KINDS["glass_blur"].corrupt(picture(), np.random.default_rng(0), 0.05, 1, 1)
    known = {tuple(pixel) for row in np.floor(picture() * 255 + 1e-9) for pixel in row}
    assert {tuple(pixel) for row in (sharp * 255).round() for pixel in row} <= known
    assert not np.allclose(sharp, picture(), atol=2 / 255)


def test_jpeg_is_that_of_pillow() -> None:
    image, stream = picture(), io.BytesIO()
    Image.fromarray((image * 255).round().astype(np.uint8)).save(stream, "JPEG", quality=58)
    assert np.array_equal(made("jpeg_compression", 3, image) * 255, np.asarray(Image.open(stream)))


def test_large_images_have_the_strengths_of_imagenet() -> None:
    image = np.repeat(np.repeat(picture(), 5, 0), 5, 1)  # 80 px
    mean = image.mean((0, 1))
    assert np.array_equal(made("contrast", 1, image), eight_bits(mean + 0.4 * (image - mean)))


def test_a_corrupted_set_is_the_same_in_any_batch() -> None:
    data = load_data("corruptions:cifar10-demo/gaussian_noise/3[:6]")
    clean = load_data("cifar10-demo[:6]")
    assert data.text == "corruptions:cifar10-demo/gaussian_noise/3[:6]" and data.rows == clean.rows
    assert data.set_name == "corruptions:cifar10-demo/gaussian_noise/3" and data.class_aliases == clean.class_aliases
    whole, labels = data.read(data.rows)
    parts = torch.cat([data.read([4, 5])[0], data.read([0])[0]])
    assert torch.equal(parts, whole[[4, 5, 0]]) and torch.equal(labels, clean.read(clean.rows)[1])
    assert data.digest() != load_data("corruptions:cifar10-demo/gaussian_noise/4[:6]").digest() != clean.digest()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("corruptions:cifar10-demo", "lacks a kind or a severity"),
        ("corruptions:cifar10-demo/fog", "lacks a kind or a severity"),
        ("corruptions:cifar10-demo/fog/6", "lacks a kind or a severity"),
        ("corruptions:cifar10-demo/frost/3", "frost cannot be made here"),
        ("corruptions:cifar10-demo/fogg/3", "did you mean fog"),
        ("corruptions:cifar99/fog/3", "unknown data set"),
        ("corruptions:folder:/nowhere/fog/3", "does not exist"),
        ("corruptions:cifar10-demo/fog/3[2000:]", "hold no image"),
    ],
)
def test_wrong_texts_are_refused_before_anything_is_opened(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_data(text)
