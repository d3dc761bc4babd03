"""Configurations of timm in our words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vitattack.core.errors import UsageError


def timm_transform(cfg: Mapping[str, Any], text: str) -> str:
    """The image transform of a timm configuration, as timm's own factory would make it."""
    from timm.data.config import resolve_data_config

    resolved = resolve_data_config(pretrained_cfg=dict(cfg))  # type: ignore[no-untyped-call]
    *_, height, width = resolved["input_size"]
    mode, interpolation = resolved["crop_mode"], resolved["interpolation"]
    if mode not in ("center", "squash") or interpolation not in ("bilinear", "bicubic") or height != width:
        raise UsageError(
            f"'{text}' prepares images in a way that is not supported ({mode}, {interpolation}, {height} x {width} px): "
            "choose another model"
        )
    scaled = math.floor(width / resolved["crop_pct"])
    return f"{interpolation}{f'{scaled}x{scaled}' if mode == 'squash' else scaled}crop{width}"
