"""Attention scales that are part of a model: installed, folded into its query weights, or saved beside them.

A model with scales has a tensor `attention_scales`, (L,) or (L, H), in its state, and every forward multiplies the
attention scores by it. AAS-AT trains such models. Where queries are a plain linear map, `fold_scales` turns one into
an ordinary checkpoint; elsewhere the adapter `attention-scales` restores the scales when the weights are loaded.
"""

from __future__ import annotations

import copy
from collections.abc import Container
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from vitattack.core.errors import UsageError
from vitattack.models.attention.attention_map import AttentionMap, Per
from vitattack.models.attention.layer_detection import attention_layers
from vitattack.models.attention.projections import query_rows
from vitattack.models.attention.tap import AttentionTap
from vitattack.models.victim import frozen
from vitattack.models.weights.adapters import State, Target

SCALES = "attention_scales"
ADAPTER = "attention-scales"
# Relative error in float64: an exact fold stays far below it, one that leaves a bias unscaled far above.
IDENTITY = 1e-9


def install_scales(
    model: nn.Module, scales: Tensor, layers: AttentionMap | None = None, *, learn: bool = False
) -> None:
    """Give a model a tensor `attention_scales` that all its forwards multiply the attention scores by.

    Layers that are not given are detected in the first forward.
    """
    if scales_of(model) is not None:
        raise UsageError("the model has attention scales already: change their values in place")
    if learn:
        model.register_parameter(SCALES, nn.Parameter(scales.detach().clone()))
    else:
        model.register_buffer(SCALES, scales.detach().clone())
    model._attention_layers = layers  # type: ignore[assignment]
    model._attention_taps = []  # type: ignore[assignment]
    if _enter not in model._forward_pre_hooks.values():
        model.register_forward_pre_hook(_enter)
        model.register_forward_hook(_leave, always_call=True)


def scales_of(model: nn.Module) -> Tensor | None:
    """Return the model's own attention scales, None for a model without."""
    return model._parameters.get(SCALES, model._buffers.get(SCALES))


def remove_scales(model: nn.Module) -> None:
    """Make a model ordinary again; its weights stay as they are."""
    delattr(model, SCALES)


def _enter(model: Any, args: tuple[Any, ...]) -> None:
    scales = scales_of(model)
    if scales is None or model._attention_layers is _PROBING:
        return
    if model._attention_layers is None:
        model._attention_layers = _PROBING
        try:
            # In a thread of its own: a probe or tap around this forward must not see the one inside it.
            with ThreadPoolExecutor(1) as alone:
                model._attention_layers = alone.submit(attention_layers, model, args[0]).result()
        except BaseException:
            model._attention_layers = None
            raise
    per: Per = "head" if scales.dim() == 2 else "layer"
    model._attention_taps.append(AttentionTap(model._attention_layers, rescale=scales, per=per).__enter__())


def _leave(model: Any, args: tuple[Any, ...], output: Any) -> None:
    if model.__dict__.get("_attention_taps"):
        model._attention_taps.pop().__exit__(None, None, None)


_PROBING = AttentionMap("", (), (), (), frozenset())


def fold_scales(model: nn.Module, x: Tensor) -> bool:
    """Fold the scales into query weights and biases and remove them; return False and change nothing if not exact.

    Exactness is tested on the images x in float64, which reveals normalised queries, position biases and weights in
    another layout.
    """
    scales = scales_of(model)
    if scales is None:
        return True
    exact, images = copy.deepcopy(model).double(), x.double()
    with frozen(exact), torch.no_grad():
        wanted = exact(images)
        layers: AttentionMap = exact._attention_layers  # type: ignore[assignment]
        folds = _scale_queries(exact, layers, scales.double())
        remove_scales(exact)
        same = folds and bool(((exact(images) - wanted).abs() <= IDENTITY * (1 + wanted.abs())).all())
    if not same:
        return False
    with torch.no_grad():
        _scale_queries(model, layers, scales)
    remove_scales(model)
    return True


def _scale_queries(model: nn.Module, layers: AttentionMap, scales: Tensor) -> bool:
    modules = dict(model.named_modules())
    for layer in layers.layers:
        projections = query_rows(modules[layer.name])
        if not projections:
            return False
        factor = scales[layer.number]
        for tensor, rows in projections:
            if factor.dim():
                if rows % layer.heads:
                    return False
                factors = factor[: layer.heads].repeat_interleave(rows // layer.heads)
                tensor[:rows] *= factors.view(-1, *[1] * (tensor.dim() - 1)).to(tensor.dtype)
            else:
                tensor[:rows] *= factor.to(tensor.dtype)
    return True


def adapters_of(names: Container[str]) -> tuple[str, ...]:
    """Return the adapters that a zoo entry needs for weights with these names."""
    return (ADAPTER,) if SCALES in names else ()


def attention_scales(state: State, target: Target) -> State:
    """Install attention scales that were saved with the weights (AAS-AT)."""
    scales = state.get(SCALES)
    if scales is None:
        raise UsageError(f"the adapter '{ADAPTER}' finds no tensor named {SCALES} in the file: drop it")
    if scales.dim() not in (1, 2) or not scales.is_floating_point():
        raise UsageError(
            f"{SCALES} is {scales.dtype} of shape {tuple(scales.shape)}: floats per layer (L,) or head (L, H)"
        )
    install_scales(target.model, torch.ones_like(scales))
    return state
