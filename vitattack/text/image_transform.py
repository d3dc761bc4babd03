"""Texts of image transforms, such as `bicubic256crop224`, as values that name each step."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from vitattack.core.errors import UsageError

MOST_PIXELS = 8192


@dataclass(frozen=True)
class ImageTransform:
    """Resize, then crop the centre; a step that is None is left out."""

    resize: tuple[int, int] | None = None  # width and height; the aspect ratio is lost
    short_side: int | None = None  # the aspect ratio is kept
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    crop: int | None = None


def parse_transform(text: str) -> ImageTransform:
    """`none`, `resize224x224`, `crop224`, `bicubic256crop224` (short side to 256, then crop) or `bicubic256x256crop224`."""
    if text == "none":
        return ImageTransform()
    if match := re.fullmatch(r"resize(\d+)x(\d+)", text):
        return ImageTransform(resize=(_pixels(match[2]), _pixels(match[1])))
    if match := re.fullmatch(r"(?:(bilinear|bicubic)(\d+))?crop(\d+)", text):
        crop = _pixels(match[3])
        if match[1] is None:
            return ImageTransform(crop=crop)
        interpolation: Literal["bilinear", "bicubic"] = "bicubic" if match[1] == "bicubic" else "bilinear"
        return ImageTransform(short_side=_pixels(match[2]), interpolation=interpolation, crop=crop)
    if match := re.fullmatch(r"(bilinear|bicubic)(\d+)x(\d+)crop(\d+)", text):
        return ImageTransform(
            resize=(_pixels(match[3]), _pixels(match[2])),
            interpolation="bicubic" if match[1] == "bicubic" else "bilinear",
            crop=_pixels(match[4]),
        )
    raise UsageError(f"unknown transform '{text[:40]}': write none, resize224x224, crop224 or bicubic256crop224")


def _pixels(text: str) -> int:
    if len(text) > 9 or not 0 < int(text) <= MOST_PIXELS:
        raise UsageError(f"a transform to {text[:9]} px leaves no usable image: use 1 to {MOST_PIXELS}")
    return int(text)
