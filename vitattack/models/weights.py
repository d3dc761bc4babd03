"""Checkpoint files to tensors, and tensors into a model: hostile until parsed safely, strict always."""

from __future__ import annotations

import hashlib
import pickle
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from vitattack.errors import UsageError

SUFFIXES = (".safetensors", ".pt", ".pth")
Declared = str | Sequence[str] | None  # one, or several in the order they are tried or applied


def read_state(
    path: Path, *, sha256: str | None = None, weights_key: Declared = None, strip_prefix: Declared = None
) -> dict[str, Tensor]:
    """The named tensors of a checkpoint. Containers and prefixes are opened only when declared."""
    keys, prefixes = _several(weights_key), _several(strip_prefix)
    if not path.is_file():
        raise UsageError(f"weights file '{path}' does not exist: check the path")
    if sha256 is not None:
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != sha256:
            raise UsageError(f"'{path}' has sha256 {found[:12]}..., the zoo says {sha256[:12]}...: fetch it again")
    content = _parse(path)
    if keys:
        present = [key for key in keys if key == "." or isinstance(content.get(key), dict)]
        if not present:
            wanted = "' or '".join(keys)
            raise UsageError(f"'{path.name}' has no '{wanted}': it holds {_some(content)}")
        content = content if present[0] == "." else content[present[0]]
    nested = [key for key, value in content.items() if isinstance(value, dict)]
    if nested and not any(isinstance(value, Tensor) for value in content.values()):
        raise UsageError(f"'{path.name}' keeps its tensors under {' or '.join(nested)}: add --weights-key {nested[0]}")
    for key, value in content.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            raise UsageError(f"'{path.name}' holds '{key}', which is no named tensor: save model.state_dict() alone")
        if value.layout != torch.strided or value.is_complex() or value.is_quantized:
            raise UsageError(
                f"'{path.name}' holds {key} in a special form ({value.dtype}, {value.layout}): save dense tensors"
            )
    return _stripped(content, prefixes, path.name)


def _several(declared: Declared) -> tuple[str, ...]:
    return () if declared is None else (declared,) if isinstance(declared, str) else tuple(declared)


def _stripped(content: dict[str, Tensor], prefixes: Sequence[str], name: str) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for key, tensor in content.items():
        for prefix in prefixes:
            key = key.removeprefix(prefix)
        if key in state:
            raise UsageError(f"'{name}' has two tensors named {key} once {' and '.join(prefixes)} is cut: strip less")
        state[key] = tensor
    return state


def _parse(path: Path) -> dict[str, Any]:
    fix = "fetch it again, or check that it is the file you mean"
    if path.suffix == ".safetensors":
        try:
            return dict(load_file(path))
        except (SafetensorError, OSError, ValueError) as error:
            raise UsageError(
                f"'{path.name}' is not a readable safetensors file ({_first_line(error)}): {fix}"
            ) from error
    if path.suffix not in SUFFIXES:
        raise UsageError(f"'{path.name}' is no checkpoint by its name: {', '.join(SUFFIXES)} are read")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch muses about pickle protocols before it refuses them
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if _first_bytes(path).startswith((b"PK", b"\x80")):  # a zip or a pickle: well formed, but not only tensors
            raise UsageError(
                f"'{path.name}' holds Python objects besides tensors, which could run code: "
                "re-save model.state_dict() alone, best as safetensors"
            ) from error
        raise UsageError(f"'{path.name}' is not a readable checkpoint ({_looks_like(path)}): {fix}") from error
    except Exception as error:  # torch's parser fails on broken files in a dozen ways
        raise UsageError(f"'{path.name}' is not a readable checkpoint ({_first_line(error)}): {fix}") from error
    if not isinstance(content, dict):
        raise UsageError(f"'{path.name}' holds a {type(content).__name__}, not named tensors: save model.state_dict()")
    return content


def load_strict(model: nn.Module, state: dict[str, Tensor], name: str) -> None:
    """Every tensor finds its place, in the right shape, and every place its tensor; or one line says what does not."""
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


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(64)


def _looks_like(path: Path) -> str:
    """What a file that no parser takes may be: hosts answer with a page where a quota is used up."""
    head = _first_bytes(path).lstrip().lower()
    return (
        "it is a web page"
        if head.startswith((b"<!doctype", b"<html", b"<?xml"))
        else "no torch file by its first bytes"
    )


def _some(content: dict[str, Any]) -> str:
    keys = sorted(map(str, content))
    return ", ".join(keys[:4]) + (", ..." if len(keys) > 4 else "")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]
