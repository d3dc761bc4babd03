"""Decoding of images to pixel tensors."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from vitattack.core.errors import UsageError

# Pillow tells a format by its content, not its name, and hands some of those it knows to other programs, such as
# PostScript to Ghostscript.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "PPM", "TIFF", "GIF")
MAX_PIXELS = 64_000_000  # the largest ImageNet images have some 20 million


LARGEST_LABEL = 2**31 - 1


def check_label(largest: int, what: str) -> None:
    """Refuse a label that is no class number, such as -1 stored without a sign, before torch fails on it."""
    if largest > LARGEST_LABEL:
        raise UsageError(f"{what} has the label {largest}, which is no class number: store labels as signed integers")


def decoder_message(error: BaseException) -> str:
    """The message of a decoder's error, short and fit for one line."""
    words = " ".join("".join(c if c.isprintable() else " " for c in str(error)[:400]).split())
    return words[:120] or type(error).__name__


def decode_rgb(data: bytes, what: str, transform: Callable[[Image.Image], Image.Image] = lambda image: image) -> Tensor:
    """Decode an image to uint8 (3, H, W); `what` names it in errors."""
    with _opened(data, what) as image:
        pixels = np.array(transform(image.convert("RGB")))
    return torch.from_numpy(pixels).permute(2, 0, 1)


def decode_grey(
    data: bytes, what: str, transform: Callable[[Image.Image], Image.Image] = lambda image: image
) -> Tensor:
    """Decode a grey image to uint8 (1, H, W); one whose channels differ is refused."""
    with _opened(data, what) as image:
        grey = image.mode in ("1", "L", "LA") or _is_grey(image)
        pixels = np.array(transform(image.convert("L")))
    if not grey:
        raise UsageError(f"{what} has colours, and the model takes one channel: give grey images, or another model")
    return torch.from_numpy(pixels)[None]


def _is_grey(image: Image.Image) -> bool:
    red, green, blue = (np.asarray(channel) for channel in image.convert("RGB").split())
    return bool((red == green).all() and (green == blue).all())


def decode_size(data: bytes, what: str) -> tuple[int, int]:
    """Height and width of an encoded image, without its pixels."""
    with _opened(data, what) as image:
        return image.height, image.width


@contextmanager
def _opened(data: bytes, what: str) -> Iterator[Image.Image]:
    """An image of one of the admitted formats and sizes; whatever fails until it is closed is an error that names it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            opened = Image.open(io.BytesIO(data), formats=FORMATS)
        with opened as image:
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(f"{image.width} x {image.height} pixels are a decompression bomb")
            if image.mode.startswith(("I", "F")):
                raise ValueError(f"mode {image.mode}: more than 8 bits per channel")
            yield image
    except UnidentifiedImageError as error:
        raise UsageError(
            f"{what} is not a readable image (damaged, or it is none of {', '.join(FORMATS)}): replace or remove it"
        ) from error
    except Exception as error:  # decoders fail in their own ways on broken files: struct, zlib, index and memory errors
        raise UsageError(f"{what} is not a readable image ({decoder_message(error)}): replace or remove it") from error


def stack_pixels(images: Sequence[Tensor]) -> Tensor:
    """Stack uint8 images of one size to float32 (B, 3, H, W) in [0,1]."""
    check_one_size(images)
    return torch.stack(list(images)).float().div_(255)


def check_one_size(images: Sequence[Tensor]) -> None:
    """Refuse images that make no batch."""
    sizes = {tuple(image.shape[-2:]) for image in images}
    if len(sizes) > 1:
        shown = ", ".join(f"{h} x {w}" for h, w in sorted(sizes)[:3])
        raise UsageError(
            f"images of different sizes in one batch ({shown}): give --transform bicubic256crop224, or --input-size any "
            "if the model takes them as they are"
        )
