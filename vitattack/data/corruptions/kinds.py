"""The kinds of corruptions of Hendrycks & Dietterich (2019), with the strengths of their five severities.

A kind takes an (H, W, 3) image in [0,1], the strength and a generator. Frost, which lays photographs over an image, and
spatter are not here.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from vitattack.data.corruptions import filters
from vitattack.data.corruptions.filters import Array

Generator = np.random.Generator
SMALL = 64  # px; images up to that have the strengths of CIFAR-10-C, larger ones those of ImageNet-C


class Kind(NamedTuple):
    """A corruption and its strengths by severity, for small images and for large ones."""

    corrupt: Callable[..., Array]  # (image, rng, *strength)
    small: tuple[Any, ...]
    large: tuple[Any, ...]


def gaussian_noise(image: Array, rng: Generator, scale: float) -> Array:
    return image + rng.normal(0, scale, image.shape)


def shot_noise(image: Array, rng: Generator, photons: float) -> Array:
    return rng.poisson(image * photons) / photons


def impulse_noise(image: Array, rng: Generator, share: float) -> Array:
    struck = rng.random(image.shape) < share
    return np.where(struck, rng.random(image.shape) < 0.5, image)


def speckle_noise(image: Array, rng: Generator, scale: float) -> Array:
    return image + image * rng.normal(0, scale, image.shape)


def gaussian_blur(image: Array, rng: Generator, sigma: float) -> Array:
    return filters.gaussian_blur(image, sigma)


def defocus_blur(image: Array, rng: Generator, radius: float, softness: float) -> Array:
    return filters.filtered(image, filters.disk(radius, softness))


def glass_blur(image: Array, rng: Generator, sigma: float, reach: int, times: int) -> Array:
    """Pixels take the colour of one nearby, one after the other, as in the published images."""
    height, width = image.shape[:2]
    blurred = np.floor(filters.gaussian_blur(image, sigma) * 255).reshape(-1, 3)
    source = list(range(height * width))
    for _ in range(times):
        steps = rng.integers(-reach, reach, (height, width, 2)).tolist()
        for y in range(height - reach, reach, -1):
            for x in range(width - reach, reach, -1):
                right, down = steps[y - 1][x - 1]
                source[y * width + x] = source[(y + down) * width + x + right]
    return filters.gaussian_blur(blurred[source].reshape(image.shape) / 255, sigma)


def motion_blur(image: Array, rng: Generator, radius: float, sigma: float) -> Array:
    return filters.motion_blur(image, radius, sigma, rng.uniform(-45, 45))


def zoom_blur(image: Array, rng: Generator, end: float, step: float) -> Array:
    factors = np.arange(1, end, step)
    views = filters.sum_of(filters.zoomed(image, float(factor)) for factor in factors)
    return (image + views) / (len(factors) + 1)


def snow(
    image: Array,
    rng: Generator,
    mean: float,
    scale: float,
    zoom: float,
    threshold: float,
    radius: float,
    sigma: float,
    keep: float,
) -> Array:
    flakes = filters.zoomed(rng.normal(mean, scale, (*image.shape[:2], 1)), zoom)
    flakes = np.where(flakes < threshold, 0, np.clip(flakes, 0, 1))
    flakes = filters.motion_blur(np.floor(flakes * 255), radius, sigma, rng.uniform(-135, -45)).round() / 255
    grey = image @ np.array([0.299, 0.587, 0.114])
    paler = np.maximum(image, 1.5 * grey[..., None] + 0.5)
    found: Array = keep * image + (1 - keep) * paler + flakes + flakes[::-1, ::-1]
    return found


def fog(image: Array, rng: Generator, strength: float, decay: float) -> Array:
    height, width = image.shape[:2]
    cloud = filters.plasma(1 << max(1, (max(height, width) - 1).bit_length()), decay, rng)[:height, :width, None]
    found: Array = (image + strength * cloud) * image.max() / (image.max() + strength)
    return found


def brightness(image: Array, rng: Generator, more: float) -> Array:
    hsv = filters.to_hsv(image)
    hsv[..., 2] = np.clip(hsv[..., 2] + more, 0, 1)
    return filters.from_hsv(hsv)


def saturate(image: Array, rng: Generator, factor: float, more: float) -> Array:
    hsv = filters.to_hsv(image)
    hsv[..., 1] = np.clip(factor * hsv[..., 1] + more, 0, 1)
    return filters.from_hsv(hsv)


def contrast(image: Array, rng: Generator, factor: float) -> Array:
    mean = image.mean((0, 1), keepdims=True)
    found: Array = (image - mean) * factor + mean
    return found


def elastic_transform(image: Array, rng: Generator, shift: float, sigma: float, corner: float) -> Array:
    """Three points move, and with them the whole image; then every pixel, by a smooth field."""
    height, width = image.shape[:2]
    y, x = np.mgrid[:height, :width].astype(np.float64)
    middle, far = np.array([width // 2, height // 2]), min(height, width) // 3
    points = np.array([middle + far, [middle[0] + far, middle[1] - far], middle - far], dtype=np.float64)
    moved = points + rng.uniform(-corner, corner, points.shape)
    back = np.linalg.solve(np.column_stack([moved, np.ones(3)]), points)  # from moved points to the original ones
    from_x, from_y = np.moveaxis(np.stack([x, y, np.ones_like(x)], 2) @ back, 2, 0)
    image = filters.sampled(image, from_y, from_x, "reflect")
    fields = rng.uniform(-1, 1, (2, height, width))
    if sigma:
        fields = np.stack([filters.gaussian_blur(field, sigma, "symmetric", 3.0) for field in fields])
    right, down = shift * fields
    return filters.sampled(image, y + down, x + right, "symmetric")


def pixelate(image: Array, rng: Generator, share: float) -> Array:
    height, width = image.shape[:2]
    small = _as_picture(image).resize((int(width * share), int(height * share)), Image.Resampling.BOX)
    return np.asarray(small.resize((width, height), Image.Resampling.BOX)) / 255.0


def jpeg_compression(image: Array, rng: Generator, quality: int) -> Array:
    stream = io.BytesIO()
    _as_picture(image).save(stream, "JPEG", quality=quality)
    return np.asarray(Image.open(stream)) / 255.0


def _as_picture(image: Array) -> Image.Image:
    return Image.fromarray((image * 255).round().astype(np.uint8))


_SNOW_SMALL = (
    (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
    (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
    (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
    (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
    (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
)
_SNOW_LARGE = (
    (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
    (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
    (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
    (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
    (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
)
_ELASTIC_SMALL = ((0.0, 0.0, 2.56), (1.6, 6.4, 2.24), (2.56, 1.92, 1.92), (3.2, 1.28, 1.6), (3.2, 0.96, 0.96))
_ELASTIC_LARGE = ((488, 170.8, 24.4), (488, 19.52, 48.8), (12.2, 2.44, 4.88), (17.08, 2.44, 4.88), (29.28, 2.44, 4.88))

# In the order of CORRUPTIONS and EXTRA_CORRUPTIONS.
KINDS: dict[str, Kind] = {
    "gaussian_noise": Kind(gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10), (0.08, 0.12, 0.18, 0.26, 0.38)),
    "shot_noise": Kind(shot_noise, (500, 250, 100, 75, 50), (60, 25, 12, 5, 3)),
    "impulse_noise": Kind(impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07), (0.03, 0.06, 0.09, 0.17, 0.27)),
    "defocus_blur": Kind(
        defocus_blur,
        ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    ),
    "glass_blur": Kind(
        glass_blur,
        ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    ),
    "motion_blur": Kind(
        motion_blur, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)), ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))
    ),
    "zoom_blur": Kind(
        zoom_blur,
        ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    ),
    "snow": Kind(snow, _SNOW_SMALL, _SNOW_LARGE),
    "fog": Kind(
        fog,
        ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    ),
    "brightness": Kind(brightness, (0.05, 0.1, 0.15, 0.2, 0.3), (0.1, 0.2, 0.3, 0.4, 0.5)),
    "contrast": Kind(contrast, (0.75, 0.5, 0.4, 0.3, 0.15), (0.4, 0.3, 0.2, 0.1, 0.05)),
    "elastic_transform": Kind(elastic_transform, _ELASTIC_SMALL, _ELASTIC_LARGE),
    "pixelate": Kind(pixelate, (0.95, 0.9, 0.85, 0.75, 0.65), (0.6, 0.5, 0.4, 0.3, 0.25)),
    "jpeg_compression": Kind(jpeg_compression, (80, 65, 58, 50, 40), (25, 18, 15, 10, 7)),
    "speckle_noise": Kind(speckle_noise, (0.06, 0.1, 0.12, 0.16, 0.2), (0.15, 0.2, 0.35, 0.45, 0.6)),
    "gaussian_blur": Kind(gaussian_blur, (0.4, 0.6, 0.7, 0.8, 1), (1, 2, 3, 4, 6)),
    "saturate": Kind(
        saturate,
        ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
        ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
    ),
}


def corrupted_image(image: Array, kind: str, severity: int, rng: Generator) -> Array:
    """An image in [0,1] with a corruption of severity 1 to 5, in steps of 8 bits; what lies between them is cut off."""
    found = KINDS[kind]
    strength = (found.small if max(image.shape[:2]) <= SMALL else found.large)[severity - 1]
    result = found.corrupt(image, rng, *(strength if isinstance(strength, tuple) else (strength,)))
    # a hundred millionth of a step is rounding, which must not cost a step
    return np.floor(np.clip(result, 0, 1) * 255 + 1e-8) / 255
