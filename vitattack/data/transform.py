"""Image transforms applied to decoded files, and the rule for which transform a data set gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitattack.core.errors import UsageError
from vitattack.text.image_transform import parse_transform

if TYPE_CHECKING:  # choosing a transform needs no decoder
    from PIL import Image

LONGEST_SIDE = 65_536
Transform = Callable[["Image.Image"], "Image.Image"]


def make_transform(text: str) -> Transform:
    """The function from image to image that a text such as `bicubic256crop224` describes."""
    from PIL import Image

    steps = parse_transform(text)
    resampling = Image.Resampling.BICUBIC if steps.interpolation == "bicubic" else Image.Resampling.BILINEAR

    def apply(image: Image.Image) -> Image.Image:
        if steps.resize is not None:
            image = image.resize(steps.resize, resampling)
        if steps.short_side is not None:
            image = _scale_short_side(image, steps.short_side, resampling)
        return image if steps.crop is None else _crop_centre(image, steps.crop)

    return apply


@dataclass(frozen=True)
class Preprocessing:
    """The transform the caller asks for, and what the model takes: its own transform, its input size, its channels."""

    given: str | None = None
    model: str = "none"
    px: int | None = None
    channels: int = 3

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


def _scale_short_side(image: Image.Image, short: int, resampling: Image.Resampling) -> Image.Image:
    width, height = image.size
    size = (short, int(short * height / width)) if width <= height else (int(short * width / height), short)
    if max(size) > LONGEST_SIDE:
        raise ValueError(f"{width} x {height} pixels are too long and thin to scale to {short}")
    return image.resize(size, resampling)


def _crop_centre(image: Image.Image, size: int) -> Image.Image:
    """Crop the centre; an image that is too small gets black borders, as torchvision gives them."""
    left, top = _offset(image.width, size), _offset(image.height, size)
    return image.crop((left, top, left + size, top + size))


def _offset(side: int, size: int) -> int:
    return round((side - size) / 2) if side >= size else -((size - side) // 2)
