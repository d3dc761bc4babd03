"""State dicts: named tensors read from checkpoint files, and loaded into models strictly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitattack.core.errors import UsageError
from vitattack.core.files import file_sha256
from vitattack.core.words import names_a_file, printable
from vitattack.models.weights.safe_load import read_checkpoint
from vitattack.models.weights.sources import SUFFIXES as SUFFIXES

Declared = str | Sequence[str] | None  # one, or several in the order they are tried or applied


def read_state(
    path: Path,
    *,
    sha256: str | None = None,
    weights_key: Declared = None,
    strip_prefix: Declared = None,
    unsafe: bool = False,
) -> dict[str, Tensor]:
    """Read the named tensors of a checkpoint file; only declared containers are opened, only declared prefixes cut."""
    if not names_a_file(path):
        raise UsageError(f"weights file '{path}' does not exist: check the path")
    if sha256 is not None:
        actual = file_sha256(path)
        if actual != sha256:
            raise UsageError(f"'{path}' has sha256 {actual[:12]}..., the zoo says {sha256[:12]}...: fetch it again")
    if not path.name.endswith(SUFFIXES):
        raise UsageError(f"'{path.name}' is no checkpoint by its name: {', '.join(SUFFIXES)} are read")
    return strip_prefixes(
        named_tensors(read_checkpoint(path, unsafe=unsafe), path.name, weights_key), strip_prefix, path.name
    )


def named_tensors(content: dict[Any, Any], name: str, weights_key: Declared = None) -> dict[str, Tensor]:
    """Return the tensors of a parsed checkpoint, from its top level or under the first of the keys that it has."""
    keys = _several(weights_key)
    if keys:
        present = [key for key in keys if key == "." or isinstance(content.get(key), dict)]
        if not present:
            wanted = "' or '".join(keys)
            raise UsageError(f"'{name}' has no '{wanted}': it holds {_some(content)}")
        content = content if present[0] == "." else content[present[0]]
    nested = [printable(str(key), 40) for key, value in content.items() if isinstance(value, dict)]
    if nested and not any(isinstance(value, Tensor) for value in content.values()):
        raise UsageError(f"'{name}' keeps its tensors under {' or '.join(nested)}: add --weights-key {nested[0]}")
    for key, value in content.items():
        if not isinstance(key, str) or not isinstance(value, Tensor) or not key.isprintable():
            shown = printable(str(key))
            raise UsageError(f"'{name}' holds '{shown}', which is no named tensor: save model.state_dict() alone")
        if value.layout != torch.strided or value.is_complex() or value.is_quantized:
            raise UsageError(
                f"'{name}' holds {key} in a special form ({value.dtype}, {value.layout}): save dense tensors"
            )
    return dict(content)


def _several(declared: Declared) -> tuple[str, ...]:
    return () if declared is None else (declared,) if isinstance(declared, str) else tuple(declared)


def strip_prefixes(content: dict[str, Tensor], strip_prefix: Declared, name: str) -> dict[str, Tensor]:
    """Cut declared prefixes off the names of tensors, each once and in the order given."""
    prefixes = _several(strip_prefix)
    state: dict[str, Tensor] = {}
    for key, tensor in content.items():
        for prefix in prefixes:
            key = key.removeprefix(prefix)
        if key in state:
            raise UsageError(f"'{name}' has two tensors named {key} once {' and '.join(prefixes)} is cut: strip less")
        state[key] = tensor
    return state


def load_strict(model: nn.Module, state: dict[str, Tensor], name: str) -> None:
    """Load a state dict whose names and shapes are exactly those of the model; a UsageError names what does not fit."""
    own = model.state_dict()
    missing, extra = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    if missing or extra:
        raise UsageError(f"'{name}' does not fit the architecture: {_mismatch(missing, extra)}")
    for key, tensor in state.items():
        if tensor.shape != own[key].shape:
            raise UsageError(
                f"'{name}' does not fit the architecture: {key} is {tuple(tensor.shape)} in the file and "
                f"{tuple(own[key].shape)} in the model: give --arch-kwargs (such as num_classes, img_size)"
            )
        if not torch.isfinite(tensor).all():
            raise UsageError(f"'{name}' holds NaN or infinite values in {key}: the checkpoint is broken")
    model.load_state_dict(state, strict=True)


def _mismatch(missing: list[str], extra: list[str]) -> str:
    prefixes = Counter(key.split(".")[0] + "." for key in extra)
    if missing and len(extra) == len(missing) and len(prefixes) == 1:
        (prefix,) = prefixes
        if all(key.removeprefix(prefix) in set(missing) for key in extra):
            return f"every name starts with '{prefix}': add --strip-prefix {prefix}"
    parts = []
    if missing:
        parts.append(f"{len(missing)} missing, such as {missing[0]}")
    if extra:
        parts.append(f"{len(extra)} unknown, such as {extra[0]}")
    return "; ".join(parts) + ": check --arch and --arch-kwargs"


def _some(content: dict[str, Any]) -> str:
    keys = sorted(printable(str(key), 40) for key in content)
    return ", ".join(keys[:4]) + (", ..." if len(keys) > 4 else "")
