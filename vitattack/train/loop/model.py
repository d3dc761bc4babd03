"""The model of a recipe: built from its seed, begun from other weights if asked, and written out at the end."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from vitattack.core.errors import UsageError
from vitattack.core.files import file_sha256
from vitattack.models.architectures.build import build
from vitattack.models.normalise import normaliser
from vitattack.models.victim import Victim, probe
from vitattack.models.weights.adapters import Target, adapt
from vitattack.models.weights.state_dict import SUFFIXES, load_strict, read_state
from vitattack.models.zoo.entries import entries
from vitattack.models.zoo.load import input_of
from vitattack.models.zoo.load import load as load_model
from vitattack.train.recipe import Recipe


class Learner(Victim):
    """A victim that computes in bfloat16 where the recipe says so; weights, logits and losses stay in float32."""

    bf16 = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.bf16:
            return super().forward(x)
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return super().forward(x).float()


def learner(recipe: Recipe, num_classes: int, device: torch.device) -> Learner:
    """The model with its first weights; equal recipes give equal weights on every machine."""
    if recipe.precision == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise UsageError("precision: this GPU has no bfloat16: use precision=fp32")
    with torch.random.fork_rng(devices=[]), _fused(not (recipe.precision == "bf16" and device.type == "cpu")):
        torch.manual_seed(recipe.seed)
        model = build(recipe.arch, {"num_classes": num_classes, **recipe.arch_kwargs})
    pair = normaliser(recipe.normalize)
    if recipe.init is not None:
        begin_from(model, recipe.init, recipe.init_adapter, num_classes, pair)
    mean, std = pair or (None, None)
    size = input_of(model, recipe.arch_kwargs)
    made = Learner(model, name=recipe.name, num_classes=num_classes, input_size=size, mean=mean, std=std)
    probe(made)
    made.bf16 = recipe.precision == "bf16"
    return made.to(device)


@contextmanager
def _fused(wanted: bool) -> Iterator[None]:
    """Whether timm's attention takes the fused kernel, whose backward in bfloat16 is slow on CPUs."""
    from timm.layers.config import set_fused_attn, use_fused_attn

    before, experimental = use_fused_attn(), use_fused_attn(experimental=True)
    set_fused_attn(before and wanted, experimental)
    try:
        yield
    finally:
        set_fused_attn(before, experimental)


def run_key(recipe: Recipe) -> str:
    """That of the recipe, and of the weights it begins from where a name may come to mean others."""
    known = _first_weights(recipe.init)
    return recipe.key if known is None else hashlib.sha256(f"{recipe.key}|{known}".encode()).hexdigest()


def _first_weights(init: str | None) -> str | None:
    """The sha256 of a file or of a zoo entry that says it."""
    if init is None or init.startswith(("timm:", "hf-hub:")):
        return None
    if init in (known := entries()):
        weights = known[init].weights
        return weights.sha256 if weights else None
    with suppress(OSError):  # what is wrong with the file is said when it is read
        return file_sha256(Path(init)) if init.endswith(SUFFIXES) else None
    return None


def begin_from(
    model: nn.Module, text: str, adapters: Sequence[str], num_classes: int, normalize: Any
) -> tuple[str, ...]:
    """Puts the weights of a zoo entry, `timm:ARCH.TAG` or a file into the model; gives the names that were left out.

    Everything must fit, but for the classifier of another number of classes, which starts anew.
    """
    if text in entries() or text.startswith(("timm:", "hf-hub:")):
        found = load_model(text, torch.device("cpu"))
        state = {name: value.detach().clone() for name, value in found.victim.model.state_dict().items()}
    elif text.endswith(SUFFIXES):
        state = read_state(Path(text))
    else:
        raise UsageError(f"init '{text}' is no model of the zoo, timm:ARCH.TAG or weights file: correct init")
    floats = {name: value.float() if value.is_floating_point() else value for name, value in state.items()}
    floats = adapt(floats, Target(model, normalize), adapters)
    own = model.state_dict()
    heads = tuple(name for name in _classifier(model) if name in floats and floats[name].shape != own[name].shape)
    load_strict(model, {**floats, **{name: own[name] for name in heads}}, text)
    return heads


def _classifier(model: nn.Module) -> tuple[str, ...]:
    """The tensors of the last layer, by timm's own word for it, or none."""
    layer: Any = getattr(model, "get_classifier", lambda: None)()
    return tuple(name for name, module in model.named_modules() if module is layer for name in _tensors(name, module))


def _tensors(prefix: str, module: nn.Module) -> list[str]:
    return [f"{prefix}.{name}" if prefix else name for name in module.state_dict()]


def exported(model: nn.Module, half: bool, about: dict[str, Any]) -> bytes:
    """The weights as a safetensors file; `half` writes floats in float16."""

    def written(value: Tensor) -> Tensor:
        value = value.detach().cpu()
        return (value.half() if half and value.is_floating_point() else value).clone().contiguous()

    # one key of metadata: safetensors writes several in no fixed order
    words = {"vitattack": json.dumps(about, sort_keys=True)}
    return save({name: written(value) for name, value in model.state_dict().items()}, words)
