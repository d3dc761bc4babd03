"""What is done to the names, and at times the shapes, of a checkpoint before it is loaded strictly.

An adapter is named in a zoo entry or by `--adapter`. It is given the state and the model that will take it, and answers
with a state; what it does not know it leaves alone, and strict loading has the last word.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from vitattack.core.errors import UsageError
from vitattack.core.registry import Registry
from vitattack.models.architectures.small_vits import fold_kernel, interpolate_positions
from vitattack.models.normalise import Normaliser

State = dict[str, Tensor]


@dataclass(frozen=True)
class Target:
    """The model a state is for, and the normalisation its entry declares."""

    model: nn.Module
    normalize: Normaliser | None


Adapter = Callable[[State, Target], State]
ADAPTERS: Registry[Adapter] = Registry("adapter")
ADAPTERS.add("attention-scales", "vitattack.models.attention.baked_scales:attention_scales")


def adapt(state: Mapping[str, Tensor], target: Target, names: Sequence[str]) -> State:
    """The state after every named adapter, in order."""
    adapted = dict(state)
    for name in names:
        adapted = ADAPTERS[name](adapted, target)
    return adapted


@ADAPTERS.register("swin")
def swin(state: State, target: Target) -> State:
    """Swin states of the original code and of timm before 0.9: timm moved the down-sampling to the next stage."""
    from timm.models.swin_transformer import SwinTransformer, checkpoint_filter_fn

    if not isinstance(target.model, SwinTransformer):
        raise UsageError("the adapter 'swin' is for timm's Swin transformers: drop it")
    return _renamed(state, checkpoint_filter_fn(dict(state), target.model), "swin")


@ADAPTERS.register("timm")
def timm_filter(state: State, target: Target) -> State:
    """What timm itself does to weights of the model's family, such as splitting class attention; never resampling."""
    module: Any = sys.modules[type(target.model).__module__]
    rename = getattr(module, "checkpoint_filter_fn", None)
    if rename is None:
        return state
    options = {"adapt_layer_scale": True} if "adapt_layer_scale" in inspect.signature(rename).parameters else {}
    return _renamed(state, rename(dict(state), target.model, **options), "timm")


def _renamed(before: State, after: Mapping[str, Tensor], name: str) -> State:
    """timm's filters resize silently what does not fit; a benchmark must not."""
    untouched = set(map(id, before.values()))
    for key, tensor in after.items():
        same = before.get(key)
        if id(tensor) not in untouched and same is not None and same.shape != tensor.shape:
            raise UsageError(
                f"the adapter '{name}' would resample {key} from {tuple(same.shape)} to {tuple(tensor.shape)}: "
                "check --arch and --arch-kwargs (img_size, patch_size, window_size)"
            )
    return dict(after)


@ADAPTERS.register("normaliser")
def normaliser(state: State, target: Target) -> State:
    """A normaliser saved as the model's first layer (0.mean, 0.std, 1.*): checked against the declared one, dropped."""
    for layer, inner in (("0.", "1."), ("normalize.", "model.")):
        mean, std = state.get(layer + "mean"), state.get(layer + "std")
        if mean is None or std is None:
            continue
        declared = target.normalize or ((0.0,) * mean.numel(), (1.0,) * std.numel())
        for found, wanted in zip((mean, std), declared, strict=True):
            values = [float(v) for v in found.flatten()]
            if len(values) != len(wanted) or any(abs(a - b) > 1e-3 for a, b in zip(values, wanted, strict=True)):
                shown = ", ".join(f"{v:.4g}" for v in values)
                raise UsageError(
                    f"the file normalises with {layer}mean or std {shown}, which is not what is declared: correct --normalize"
                )
        return {key.removeprefix(inner): t for key, t in state.items() if not key.startswith(layer)}
    return state


@ADAPTERS.register("vit-patch")
def vit_patch(state: State, target: Target) -> State:
    """A plain ViT for larger patches and images, made to fit: the patch kernel is folded, positions interpolated."""
    model: Any = target.model
    weight, positions = state.get("patch_embed.proj.weight"), state.get("pos_embed")
    if weight is None or positions is None or not hasattr(model, "pos_embed"):
        raise UsageError("the adapter 'vit-patch' is for plain ViTs (patch_embed.proj and pos_embed): drop it")
    kernel = model.patch_embed.proj.weight.shape[-1]
    prefix = 0 if getattr(model, "no_embed_class", False) else int(model.num_prefix_tokens)
    return {
        **state,
        "patch_embed.proj.weight": weight if weight.shape[-1] == kernel else fold_kernel(weight, kernel),
        "pos_embed": interpolate_positions(positions, model.patch_embed.grid_size, prefix),
    }
