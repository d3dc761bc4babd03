"""Images as texts that figures hold: PNG in base64."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from torch import Tensor

from vitattack.analyses.measures.heatmaps import around_mean, to_unit

Pixels = np.ndarray[Any, Any]


def png(image: Tensor) -> str:
    """A (C, H, W) image in [0,1]."""
    return _encoded(_pixels(image))


def png_of_map(image: Tensor, heat: Tensor, *, diverging: bool = False) -> str:
    """The image in grey under the colours of an (H, W) map; a diverging one is white at its mean, blue below, red above."""
    from matplotlib import colormaps

    scaled = around_mean(heat[None]) if diverging else to_unit(heat[None])
    colours = colormaps["bwr" if diverging else "inferno"](scaled[0].numpy())[..., :3]
    grey = _pixels(image).mean(2, keepdims=True) / 255
    return _encoded((255 * (0.35 * grey + 0.65 * colours)).round().astype(np.uint8))


def _pixels(image: Tensor) -> Pixels:
    colours = image.detach().cpu().expand(3, -1, -1) if image.shape[0] == 1 else image.detach().cpu()
    found: Pixels = (colours.permute(1, 2, 0).clamp(0, 1) * 255).round().byte().numpy()
    return found


def _encoded(pixels: Pixels) -> str:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG", optimize=True)
    return base64.b64encode(stream.getvalue()).decode()
