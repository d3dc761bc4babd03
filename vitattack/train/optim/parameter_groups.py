"""Parameter groups with weight decay where it belongs and layer-wise peak learning rates."""

from __future__ import annotations

from typing import Any

from timm.optim import (  # type: ignore[attr-defined]
    param_groups_layer_decay,
    param_groups_weight_decay,
)
from torch import nn

from vitattack.core.errors import UsageError
from vitattack.models.attention.baked_scales import SCALES
from vitattack.models.victim import Victim


def parameter_groups(model: nn.Module, lr: float, decay: float, layers: float = 1.0) -> list[dict[str, Any]]:
    """Group parameters, each group's peak rate under "peak"; vectors, attention scales and the model's own list do not decay.

    With `layers` < 1, layer l of L learns at layers ** (L - l) times the rate of the head (BEiT, 2021).
    """
    model = model.model if isinstance(model, Victim) else model  # timm knows the layers of the bare model
    no_decay = [*getattr(model, "no_weight_decay", lambda: ())(), SCALES]
    if layers < 1:
        groups: list[dict[str, Any]] = param_groups_layer_decay(
            model, decay, no_weight_decay_list=no_decay, layer_decay=layers
        )
    else:
        groups = param_groups_weight_decay(model, decay, no_weight_decay_list=no_decay)
    if not groups:
        raise UsageError("the model has no trainable parameter: unfreeze some")
    if layers < 1 and len({group["lr_scale"] for group in groups}) == 1:
        raise UsageError("timm cannot tell how deep in the model its parameters lie: use layers=1")
    for group in groups:
        group["peak"] = group["lr"] = lr * group.pop("lr_scale", 1.0)
    return groups
