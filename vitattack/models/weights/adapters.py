"""Adapters: changes to the tensor names, and at times the shapes, of a checkpoint before it is loaded strictly.

An adapter is named in a zoo entry or by `--adapter`. It maps a state and the model that will load it to a new state and
leaves tensors it does not know alone; strict loading has the last word.
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
    """The model that will load a state, and the normalisation declared for it."""

    model: nn.Module
    normalize: Normaliser | None


Adapter = Callable[[State, Target], State]
ADAPTERS: Registry[Adapter] = Registry("adapter")
ADAPTERS.add("attention-scales", "vitattack.models.attention.baked_scales:attention_scales")
ADAPTERS.add("tora", "vitattack.models.weights.from_backbone:from_backbone")


def adapt(state: Mapping[str, Tensor], target: Target, names: Sequence[str]) -> State:
    """Apply the named adapters to a state, in order."""
    adapted = dict(state)
    for name in names:
        adapted = ADAPTERS[name](adapted, target)
    return adapted


@ADAPTERS.register("swin")
def swin(state: State, target: Target) -> State:
    """Rename Swin states of the original code and of timm before 0.9, where down-sampling ended the previous stage."""
    from timm.models.swin_transformer import SwinTransformer, checkpoint_filter_fn

    if not isinstance(target.model, SwinTransformer):
        raise UsageError("the adapter 'swin' is for timm's Swin transformers: drop it")
    return _refuse_resampling(state, checkpoint_filter_fn(dict(state), target.model), "swin")


@ADAPTERS.register("timm")
def timm_filter(state: State, target: Target) -> State:
    """Apply timm's own filter for the model's family, such as splitting class attention; resampling is refused."""
    module: Any = sys.modules[type(target.model).__module__]
    rename = getattr(module, "checkpoint_filter_fn", None)
    if rename is None:
        return state
    options = {"adapt_layer_scale": True} if "adapt_layer_scale" in inspect.signature(rename).parameters else {}
    return _refuse_resampling(state, rename(dict(state), target.model, **options), "timm")


def _refuse_resampling(before: State, after: Mapping[str, Tensor], name: str) -> State:
    """Refuse tensors that were resized: timm's filters do so silently, a benchmark must not."""
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
def drop_normaliser(state: State, target: Target) -> State:
    """Drop a normaliser saved as the first layer (0.mean, 0.std, 1.*) after comparing it with the declared one."""
    for layer, inner in (("0.", "1."), ("normalize.", "model.")):
        mean, std = state.get(layer + "mean"), state.get(layer + "std")
        if mean is None or std is None:
            continue
        declared = target.normalize or ((0.0,) * mean.numel(), (1.0,) * std.numel())
        for saved, wanted in zip((mean, std), declared, strict=True):
            values = [float(v) for v in saved.flatten()]
            if len(values) != len(wanted) or any(abs(a - b) > 1e-3 for a, b in zip(values, wanted, strict=True)):
                shown = ", ".join(f"{v:.4g}" for v in values)
                raise UsageError(
                    f"the file normalises with {layer}mean or std {shown}, which is not the declared one: correct --normalize"
                )
        return {key.removeprefix(inner): t for key, t in state.items() if not key.startswith(layer)}
    return state


@ADAPTERS.register("vit-patch")
def vit_patch(state: State, target: Target) -> State:
    """Fit a plain ViT for larger patches and images: fold its patch kernel, interpolate its position embeddings."""
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
