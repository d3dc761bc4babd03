"""The model of a recipe: built from its seed or from initial weights, and written out as safetensors."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from vitattack.core.errors import UsageError
from vitattack.models.architectures.build import build_architecture
from vitattack.models.normalise import parse_normaliser
from vitattack.models.victim import Victim, check_forward
from vitattack.models.zoo.from_file import input_size_of
from vitattack.train.loop.initial_weights import load_initial_weights
from vitattack.train.recipe import Recipe


class TrainingModel(Victim):
    """A victim in mixed precision if the recipe says so: bfloat16 forwards; float32 weights, logits and losses."""

    bf16 = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.bf16:
            return super().forward(x)
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return super().forward(x).float()


def build_training_model(recipe: Recipe, num_classes: int, device: torch.device) -> TrainingModel:
    """The model with its initial weights; equal recipes give equal weights on every machine."""
    if recipe.precision == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise UsageError("precision: this GPU has no bfloat16: use precision=fp32")
    with torch.random.fork_rng(devices=[]), _fused_attention(not (recipe.precision == "bf16" and device.type == "cpu")):
        torch.manual_seed(recipe.seed)
        model = build_architecture(recipe.arch, {"num_classes": num_classes, **recipe.arch_kwargs})
    mean_and_std = parse_normaliser(recipe.normalize)
    if recipe.init is not None:
        load_initial_weights(model, recipe.init, recipe.init_adapter, num_classes, mean_and_std)
    mean, std = mean_and_std or (None, None)
    size = input_size_of(model, recipe.arch_kwargs)
    victim = TrainingModel(model, name=recipe.name, num_classes=num_classes, input_size=size, mean=mean, std=std)
    check_forward(victim)
    victim.bf16 = recipe.precision == "bf16"
    return victim.to(device)


@contextmanager
def _fused_attention(wanted: bool) -> Iterator[None]:
    """Let timm use its fused attention only if wanted: its backward in bfloat16 is slow on CPUs."""
    from timm.layers.config import set_fused_attn, use_fused_attn

    before, experimental = use_fused_attn(), use_fused_attn(experimental=True)
    set_fused_attn(before and wanted, experimental)
    try:
        yield
    finally:
        set_fused_attn(before, experimental)


def stored_tensor(value: Tensor, half: bool) -> Tensor:
    """A tensor as weights files hold it: on the CPU, its floats in float16 if `half`."""
    value = value.detach().cpu()
    return (value.half() if half and value.is_floating_point() else value).clone().contiguous()


def safetensors_bytes(model: nn.Module, half: bool, about: dict[str, Any], exact: Collection[str] = ()) -> bytes:
    """The weights as the content of a safetensors file; `half` stores floats in float16, but for those named `exact`."""
    # a single key, since safetensors writes several in no fixed order
    metadata = {"vitattack": json.dumps(about, sort_keys=True)}
    state = model.state_dict()
    return save({name: stored_tensor(value, half and name not in exact) for name, value in state.items()}, metadata)
