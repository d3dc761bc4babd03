"""Initial weights from a zoo entry, a timm model or a file, and their part in the key of a run."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitattack.core.errors import UsageError
from vitattack.core.files import file_sha256
from vitattack.models.weights.adapters import Target, adapt
from vitattack.models.weights.state_dict import SUFFIXES, load_strict, read_state
from vitattack.models.zoo.catalogue import zoo_entries
from vitattack.models.zoo.load import load_model
from vitattack.train.recipe import Recipe


def run_key(recipe: Recipe) -> str:
    """The key of the recipe, extended by the digest of its initial weights where their name may come to mean others."""
    digest = _initial_digest(recipe.init)
    return recipe.key if digest is None else hashlib.sha256(f"{recipe.key}|{digest}".encode()).hexdigest()


def _initial_digest(init: str | None) -> str | None:
    """The sha256 of a weights file, or of a zoo entry that states one."""
    if init is None or init.startswith(("timm:", "hf-hub:")):
        return None
    if init in (known := zoo_entries()):
        weights = known[init].weights
        return weights.sha256 if weights else None
    with suppress(OSError):  # an unreadable file is reported when it is loaded
        return file_sha256(Path(init)) if init.endswith(SUFFIXES) else None
    return None


def check_init(text: str) -> None:
    """Refuse a text that names no initial weights, without loading any."""
    if not (_is_model(text) or text.endswith(SUFFIXES)):
        raise UsageError(f"init '{text}' is not a zoo model, timm:ARCH.TAG or weights file: correct init")


def _is_model(text: str) -> bool:
    return text in zoo_entries() or text.startswith(("timm:", "hf-hub:"))


def load_initial_weights(
    model: nn.Module, text: str, adapters: Sequence[str], num_classes: int, normalize: Any
) -> tuple[str, ...]:
    """Load the weights of a zoo entry, `timm:ARCH.TAG` or a file into the model; return the names that were left out.

    Everything must fit, except that a classifier with another number of classes keeps its random weights.
    """
    check_init(text)
    if _is_model(text):
        loaded = load_model(text, torch.device("cpu"))
        state = {name: value.detach().clone() for name, value in loaded.victim.model.state_dict().items()}
    else:
        state = read_state(Path(text))
    floats = {name: value.float() if value.is_floating_point() else value for name, value in state.items()}
    floats = adapt(floats, Target(model, normalize), adapters)
    own = model.state_dict()
    heads = tuple(name for name in _classifier(model) if name in floats and floats[name].shape != own[name].shape)
    load_strict(model, {**floats, **{name: own[name] for name in heads}}, text)
    return heads


def _classifier(model: nn.Module) -> tuple[str, ...]:
    """Tensor names of the classifier that timm's `get_classifier` gives, if the model has one."""
    layer: Any = getattr(model, "get_classifier", lambda: None)()
    return tuple(
        name for name, module in model.named_modules() if module is layer for name in _tensor_names(name, module)
    )


def _tensor_names(prefix: str, module: nn.Module) -> list[str]:
    return [f"{prefix}.{name}" if prefix else name for name in module.state_dict()]
