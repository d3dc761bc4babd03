"""Filters and fields that corruptions are made of, on (H, W, C) images in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]


def gaussian_blur(image: Array, sigma: float, mode: Any = "edge", truncate: float = 4.0) -> Array:
    """Blurred along both axes by a Gaussian that is cut off at `truncate` sigma; `mode` is that of `np.pad`."""
    radius = int(truncate * sigma + 0.5)
    weights = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2) if radius else np.ones(1)
    weights /= weights.sum()
    for axis in (0, 1):
        padding = [(radius, radius) if each == axis else (0, 0) for each in range(image.ndim)]
        padded, length = np.pad(image, padding, mode=mode), image.shape[axis]
        image = sum_of(weight * padded.take(range(at, at + length), axis) for at, weight in enumerate(weights))
    return image


def filtered(image: Array, kernel: Array) -> Array:
    """Correlation with a square kernel of odd side, over edges that mirror."""
    half = len(kernel) // 2
    padded = np.pad(image, ((half, half), (half, half), (0, 0)), mode="reflect")
    height, width = image.shape[:2]
    return sum_of(kernel[y, x] * padded[y : y + height, x : x + width] for y, x in zip(*kernel.nonzero(), strict=True))


def sum_of(terms: Any) -> Array:
    """The sum of some images, one held at a time."""
    total: Any = 0.0
    for term in terms:
        total = total + term
    result: Array = total
    return result


def disk(radius: float, softness: float) -> Array:
    """A disk that sums to one, its edge softened by a Gaussian of three taps (five for a large disk)."""
    reach, taps = (8, 1) if radius <= 8 else (int(radius), 2)
    across = np.arange(-reach, reach + 1)
    sharp = (across[:, None] ** 2 + across**2 <= radius**2).astype(np.float64)
    weights = np.exp(-0.5 * (np.arange(-taps, taps + 1) / softness) ** 2)
    kernel = np.outer(weights, weights) / weights.sum() ** 2
    return filtered(sharp[..., None] / sharp.sum(), kernel)[..., 0]


def zoomed(image: Array, factor: float) -> Array:
    """The middle of an image, enlarged by a factor to the size it had."""
    for axis in (0, 1):
        side = image.shape[axis]
        kept = int(np.ceil(side / factor))
        first = (side - kept) // 2
        enlarged = round(kept * factor)
        places = first + np.arange(enlarged) * ((kept - 1) / max(1, enlarged - 1))
        start = (enlarged - side) // 2
        image = along(image, places[start : start + side], axis)
    return image


def along(image: Array, places: Array, axis: int) -> Array:
    """Linear interpolation at places along one axis."""
    below = np.clip(np.floor(places).astype(int), 0, image.shape[axis] - 1)
    above = np.minimum(below + 1, image.shape[axis] - 1)
    share = (places - below).reshape([-1 if each == axis else 1 for each in range(image.ndim)])
    found: Array = (1 - share) * image.take(below, axis) + share * image.take(above, axis)
    return found


def sampled(image: Array, y: Array, x: Array, mode: Any) -> Array:
    """Bilinear interpolation at points; beyond the edges as `np.pad` continues them in this mode."""
    height, width = image.shape[:2]
    margin = 2 + int(max(0, -y.min(), -x.min(), y.max() - height, x.max() - width))
    padded = np.pad(image, ((margin, margin), (margin, margin), (0, 0)), mode=mode)
    top, left = np.floor(y).astype(int), np.floor(x).astype(int)
    down, right = (y - top)[..., None], (x - left)[..., None]
    top, left = top + margin, left + margin
    upper = (1 - right) * padded[top, left] + right * padded[top, left + 1]
    lower = (1 - right) * padded[top + 1, left] + right * padded[top + 1, left + 1]
    found: Array = (1 - down) * upper + down * lower
    return found


def motion_blur(image: Array, radius: float, sigma: float, degrees: float) -> Array:
    """Blurred along a line, by one half of a Gaussian from each pixel on."""
    weights = np.exp(-0.5 * (np.arange(2 * int(np.ceil(radius)) + 1) / sigma) ** 2)
    weights /= weights.sum()
    angle = np.deg2rad(degrees)
    reach = len(weights)
    padded = np.pad(image, ((reach, reach), (reach, reach), (0, 0)), mode="edge")
    height, width = image.shape[:2]

    def shifted(step: int) -> Array:
        down = reach + int(np.ceil(step * np.sin(angle) - 0.5))
        right = reach + int(np.ceil(step * np.cos(angle) - 0.5))
        return padded[down : down + height, right : right + width]

    return sum_of(weight * shifted(step) for step, weight in enumerate(weights))


def plasma(side: int, decay: float, rng: np.random.Generator) -> Array:
    """A cloud in [0,1] by the diamond-square algorithm on a torus; the side is a power of two."""
    cloud, step, wobble = np.zeros((side, side)), side, 100.0

    def around(total: Array) -> Array:
        return total / 4 + wobble * rng.uniform(-wobble, wobble, total.shape)

    while step >= 2:
        half = step // 2
        corners = cloud[::step, ::step]
        total = corners + np.roll(corners, -1, 0)
        cloud[half::step, half::step] = around(total + np.roll(total, -1, 1))
        centres, corners = cloud[half::step, half::step], cloud[::step, ::step]
        cloud[::step, half::step] = around(centres + np.roll(centres, 1, 0) + corners + np.roll(corners, -1, 1))
        cloud[half::step, ::step] = around(centres + np.roll(centres, 1, 1) + corners + np.roll(corners, -1, 0))
        step, wobble = half, wobble / decay
    cloud -= cloud.min()
    found: Array = cloud / cloud.max()
    return found


def to_hsv(image: Array) -> Array:
    """Hue, saturation and value, all in [0,1]."""
    value, least = image.max(2), image.min(2)
    spread = value - least
    safe = np.where(spread > 0, spread, 1.0)
    red, green, blue = np.moveaxis(image, 2, 0)
    hue = np.where(value == red, (green - blue) / safe, 2 + (blue - red) / safe)
    hue = np.where((value == blue) & (value != red) & (value != green), 4 + (red - green) / safe, hue)
    hue = np.where(spread > 0, (hue / 6) % 1, 0.0)
    saturation = np.where(value > 0, spread / np.where(value > 0, value, 1.0), 0.0)
    return np.stack([hue, saturation, value], 2)


def from_hsv(image: Array) -> Array:
    """Red, green and blue, all in [0,1]."""
    hue, saturation, value = np.moveaxis(image, 2, 0)
    turns = (np.array([5.0, 3.0, 1.0]) + 6 * hue[..., None]) % 6
    share = np.clip(np.minimum(turns, 4 - turns), 0, 1)
    found: Array = value[..., None] * (1 - saturation[..., None] * share)
    return found
