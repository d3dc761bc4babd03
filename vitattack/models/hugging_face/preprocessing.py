"""Preparation of images as an image processor of transformers states it: normalisation, size, and a transform of ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitattack.core.errors import UsageError
from vitattack.core.words import printable
from vitattack.models.normalise import LARGEST, Normaliser, is_normaliser
from vitattack.text.image_transform import MOST_PIXELS

BILINEAR, BICUBIC = 2, 3  # as Pillow numbers them
INTERPOLATIONS = {BILINEAR: "bilinear", BICUBIC: "bicubic"}
SQUASHED_FROM = 384  # px from which processors of ConvNeXt no longer crop


@dataclass(frozen=True)
class Preparation:
    """What happens to an image before the model sees it."""

    normalize: Normaliser | None
    size: tuple[int, int] | None  # height and width; None where the model decides
    transform: str  # "none" where it cannot be said in our words
    flip_channels: bool = False  # the model takes BGR


def preparation(settings: Mapping[str, Any], name: str) -> Preparation:
    """Read the settings of an image processor, in which every default of its class is spelt out."""
    size, transform = _geometry(settings)
    return Preparation(
        _normaliser(settings, name), size, transform, flip_channels=bool(settings.get("do_flip_channel_order"))
    )


def _normaliser(settings: Mapping[str, Any], name: str) -> Normaliser | None:
    """Rescaling and normalisation as one mean and standard deviation of pixels in [0,1]."""
    factor = _numbers(settings.get("rescale_factor") or 1 / 255)
    scale = 255 * factor[0] if len(factor) == 1 else math.nan
    scale = scale if settings.get("do_rescale", True) else 255.0
    offset = 1.0 if settings.get("rescale_offset") and settings.get("do_rescale", True) else 0.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    if settings.get("do_normalize", settings.get("image_mean") is not None):
        mean, std = _numbers(settings.get("image_mean")), _numbers(settings.get("image_std"))
        if settings.get("include_top"):  # EfficientNet divides once more
            std = tuple(value * value for value in std)
    if not math.isfinite(scale) or scale <= 0 or not is_normaliser(mean, std):
        raise UsageError(
            f"'{name}' normalises by {printable(f'{mean}/{std}', 80)}, which is not understood: correct image_mean"
        )
    own = tuple((value + offset) / scale for value in mean), tuple(value / scale for value in std)
    # 255 * (1 / 255) is 1 up to the last bit: the mean and std of the file stay as they are written
    if abs(scale - 1) < 1e-6 and not offset:
        own = mean, std
    return None if own == ((0.0,), (1.0,)) else own


def _numbers(value: Any) -> tuple[float, ...]:
    values = value if isinstance(value, list | tuple) else (value,)
    fits = all(isinstance(v, int | float) and abs(v) < LARGEST for v in values)
    return tuple(float(v) for v in values) if fits else ()


def _geometry(settings: Mapping[str, Any]) -> tuple[tuple[int, int] | None, str]:
    """The size of prepared images, and the transform of ours that prepares them so."""
    size, crop = _sides(settings.get("size")), _sides(settings.get("crop_size"))
    resample = settings.get("resample")
    method = INTERPOLATIONS.get(int(resample)) if isinstance(resample, int) else None
    crops = bool(settings.get("do_center_crop")) and "height" in crop
    final = (crop["height"], crop["width"]) if crops else None
    square = final is not None and final[0] == final[1]
    if not settings.get("do_resize", True):
        return final, f"crop{final[0]}" if final and square else "none"
    if "height" in size:
        scaled = (size["height"], size["width"])
        target = final or scaled
        if method == "bilinear" and final is None and scaled[0] != scaled[1]:
            return scaled, f"resize{scaled[0]}x{scaled[1]}"
        known = method and scaled[0] == scaled[1] and target[0] == target[1]
        return target, f"{method}{scaled[0]}x{scaled[1]}crop{target[0]}" if known else "none"
    short = size.get("shortest_edge")
    if short is None:
        return final, "none"
    pct = settings.get("crop_pct")
    if not isinstance(pct, int | float) or not short / MOST_PIXELS < pct <= 1:  # else no size that a transform has
        pct = None
    if pct is not None and not crops:  # ConvNeXt
        text = f"{short}x{short}" if short >= SQUASHED_FROM else f"{int(short / pct)}"
        return (short, short), f"{method}{text}crop{short}" if method else "none"
    if pct is not None:  # PoolFormer
        short = int(short / pct)
    if str(settings.get("image_processor_type", "")).startswith("Levit"):
        short = min(MOST_PIXELS, int(256 / 224 * short))
    return final, f"{method}{short}crop{final[0]}" if method and final and square else "none"


def _sides(value: Any) -> dict[str, int]:
    """The sides that a size names."""
    if isinstance(value, int):
        value = {"height": value, "width": value}
    if not isinstance(value, Mapping):
        return {}
    sides = {str(key): side for key, side in value.items() if _is_side(side)}
    if ("height" in sides) != ("width" in sides):
        return {}
    return sides


def _is_side(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST_PIXELS
