"""How an image file becomes the pixels a model is asked about; the name of the transform is part of every record."""

from __future__ import annotations

import re
from collections.abc import Callable

from PIL import Image

from vitattack.errors import UsageError

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
Transform = Callable[[Image.Image], Image.Image]


def transform(text: str) -> Transform:
    """`none`, `resize224x224` (aspect lost, bilinear) or `bicubic256crop224` (short side to 256, centre crop)."""
    if text == "none":
        return lambda image: image
    if found := re.fullmatch(r"resize(\d+)x(\d+)", text):
        size = (_pixels(found[2]), _pixels(found[1]))
        return lambda image: image.resize(size, Image.Resampling.BILINEAR)
    if found := re.fullmatch(r"(bilinear|bicubic)(\d+)crop(\d+)", text):
        how, short, crop = FILTERS[found[1]], _pixels(found[2]), _pixels(found[3])
        return lambda image: _centre(_short_side(image, short, how), crop)
    raise UsageError(f"unknown transform '{text}': write none, resize224x224 or bicubic256crop224")


def _pixels(text: str) -> int:
    if not 0 < int(text[:9]) <= 8192:
        raise UsageError(f"a transform to {text[:9]} px is none: use 1 to 8192")
    return int(text)


def _short_side(image: Image.Image, short: int, how: Image.Resampling) -> Image.Image:
    width, height = image.size
    if width <= height:
        return image.resize((short, int(short * height / width)), how)
    return image.resize((int(short * width / height), short), how)


def _centre(image: Image.Image, size: int) -> Image.Image:
    left, top = round((image.width - size) / 2), round((image.height - size) / 2)
    return image.crop((left, top, left + size, top + size))
