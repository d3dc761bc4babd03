"""The adapter `tora`: a checkpoint of a plain ViT as the backbone of a TORA-ViT."""

from __future__ import annotations

from vitattack.core.errors import UsageError
from vitattack.models.architectures.tora import BACKBONE, ToraViT
from vitattack.models.architectures.tora_layers import SIDES
from vitattack.models.weights.adapters import State, Target


def from_backbone(state: State, target: Target) -> State:
    """Name the tensors of a plain ViT as TORA-ViT does; heads begin as the backbone's, the rest as the model has it.

    A classifier for other classes is left out. The state of a TORA-ViT passes as it is.
    """
    if not isinstance(target.model, ToraViT):
        raise UsageError("the adapter 'tora' is for TORA-ViTs, such as arch=tora:vit_base_patch16_224: drop it")
    if any(name.startswith(BACKBONE) for name in state):
        return state
    own = target.model.state_dict()
    same_classes = "head.weight" in state and state["head.weight"].shape == own[f"{BACKBONE}head.weight"].shape
    renamed = {BACKBONE + name: value for name, value in state.items() if same_classes or not name.startswith("head.")}
    if same_classes:
        renamed |= {f"heads.{side}.{part}": state[f"head.{part}"] for side in SIDES for part in ("weight", "bias")}
    missing = {
        name: value
        for name, value in own.items()
        if not name.startswith(BACKBONE) or name.startswith(f"{BACKBONE}head.")
    }
    return {**missing, **renamed}
