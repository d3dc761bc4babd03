"""How an image file becomes the pixels a model is asked about; the name of the transform is part of every record."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from PIL import Image

from vitattack.core.errors import UsageError

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
LONGEST = 65_536
Transform = Callable[[Image.Image], Image.Image]


def transform(text: str) -> Transform:
    """`none`, `resize224x224` (aspect lost, bilinear), `crop224`, `bicubic256crop224` (short side to 256, then crop)."""
    if text == "none":
        return lambda image: image
    if found := re.fullmatch(r"resize(\d+)x(\d+)", text):
        size = (_pixels(found[2]), _pixels(found[1]))
        return lambda image: image.resize(size, Image.Resampling.BILINEAR)
    if found := re.fullmatch(r"(?:(bilinear|bicubic)(\d+))?crop(\d+)", text):
        crop = _pixels(found[3])
        if found[1] is None:
            return lambda image: _centre(image, crop)
        how, short = FILTERS[found[1]], _pixels(found[2])
        return lambda image: _centre(_short_side(image, short, how), crop)
    raise UsageError(f"unknown transform '{text[:40]}': write none, resize224x224, crop224 or bicubic256crop224")


@dataclass(frozen=True)
class Preprocessing:
    """What the caller asks for and what the model was made with; `px` is the model's input size."""

    given: str | None = None
    model: str = "none"
    px: int | None = None

    def settle(self, written: str | None, own: str | None) -> tuple[str, str]:
        """The transform and who decided it: the caller, the text of the data, the data set or protocol, the model."""
        if self.given is not None and written is not None and self.given != written:
            raise UsageError(f"two transforms are named, {written[:40]} and {self.given[:40]}: give one")
        if self.given is not None or written is not None:
            return self.given or written or "none", "given"
        if own is not None:
            return self._sized(own), "data"
        return self.model, "model"

    def _sized(self, own: str) -> str:
        if "{px}" in own and self.px is None:
            raise UsageError(
                "this set is scaled to the model's input, which is not known: give --transform resize224x224"
            )
        return own.replace("{px}", str(self.px))


def _pixels(text: str) -> int:
    if not 0 < int(text[:9]) <= 8192:
        raise UsageError(f"a transform to {text[:9]} px is none: use 1 to 8192")
    return int(text)


def _short_side(image: Image.Image, short: int, how: Image.Resampling) -> Image.Image:
    width, height = image.size
    size = (short, int(short * height / width)) if width <= height else (int(short * width / height), short)
    if max(size) > LONGEST:
        raise ValueError(f"{width} x {height} pixels are too long and thin to scale to {short}")
    return image.resize(size, how)


def _centre(image: Image.Image, size: int) -> Image.Image:
    left, top = round((image.width - size) / 2), round((image.height - size) / 2)
    return image.crop((left, top, left + size, top + size))
