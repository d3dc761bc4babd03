"""The size of images that a model takes: as stated, by its own attributes, or found by trying."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from vitattack.core.errors import UsageError
from vitattack.core.words import printable
from vitattack.models.victim import frozen

TRIED = (28, 32, 64, 96, 128, 224, 256, 384, 448, 518)


def stated_size(model: nn.Module, kwargs: Mapping[str, Any] = {}) -> tuple[int, int] | None:
    """The height and width that a model's attributes or its arguments state."""
    embed, config = getattr(model, "patch_embed", None), getattr(model, "config", None)
    cfg = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None) or {}
    for value in (
        kwargs.get("img_size"),
        getattr(embed, "img_size", None),
        getattr(model, "img_size", None),
        getattr(model, "image_size", None),
        getattr(config, "image_size", None),
        cfg.get("input_size", (None,))[1:] if isinstance(cfg, Mapping) else None,
    ):
        if isinstance(value, int) and value > 0:
            return value, value
        if (
            isinstance(value, Sequence)
            and len(value) == 2
            and all(isinstance(side, int) and side > 0 for side in value)
        ):
            return int(value[0]), int(value[1])
    return None


def find_size(model: nn.Module, name: str, *, several: bool = False) -> tuple[int, int]:
    """The size of a model that does not state it: the only one of the usual ones that it takes, the smallest of `several`."""
    stated = stated_size(model)
    if stated is not None:
        return stated
    fitting = [side for side in TRIED if channels_taken(model, (side, side), 1) is not None]
    if len(fitting) == 1 or (fitting and several):
        return fitting[0], fitting[0]
    if not fitting:
        raise UsageError(
            f"'{printable(name)}' takes no square images of {', '.join(map(str, TRIED))} px, with three channels or one: "
            "add --input-size H or HxW"
        )
    raise UsageError(
        f"'{printable(name)}' takes images of several sizes ({', '.join(map(str, fitting[:4]))}...): "
        "add --input-size, such as 224, or any if images keep their sizes"
    )


def channels_taken(model: nn.Module, size: tuple[int, int], count: int = 2) -> tuple[int, Tensor] | None:
    """How many channels a model takes, three or one, with its logits of grey images; None if it takes neither."""
    for channels in (3, 1):
        logits = answers(model, torch.full((count, channels, *size), 0.5))
        if logits is not None:
            return channels, logits
    return None


def answers(model: nn.Module, images: Tensor) -> Tensor | None:
    """The logits of some images, None if the model does not take them."""
    with suppress(Exception), frozen(model), torch.no_grad():  # models fail on other shapes in ways of their own
        out: Any = model(images)
        logits = out if isinstance(out, Tensor) else getattr(out, "logits", None)
        if isinstance(logits, Tensor) and logits.dim() == 2 and len(logits) == len(images):
            return logits
    return None
