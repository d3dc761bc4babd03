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
        size = (int(found[2]), int(found[1]))
        return lambda image: image.resize(size, Image.Resampling.BILINEAR)
    if found := re.fullmatch(r"(bilinear|bicubic)(\d+)crop(\d+)", text):
        how, short, crop = FILTERS[found[1]], int(found[2]), int(found[3])
        return lambda image: _centre(_short_side(image, short, how), crop)
    raise UsageError(f"unknown transform '{text}': write none, resize224x224 or bicubic256crop224")


def _short_side(image: Image.Image, short: int, how: Image.Resampling) -> Image.Image:
    width, height = image.size
    if width <= height:
        return image.resize((short, int(short * height / width)), how)
    return image.resize((int(short * width / height), short), how)


def _centre(image: Image.Image, size: int) -> Image.Image:
    left, top = round((image.width - size) / 2), round((image.height - size) / 2)
    return image.crop((left, top, left + size, top + size))
