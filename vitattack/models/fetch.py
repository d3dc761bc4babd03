"""A zoo entry's weights as named tensors: found where they are, checked before they are parsed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from vitattack._assets import EMBEDDED
from vitattack.errors import UsageError
from vitattack.models.sources import Source, Weights
from vitattack.models.weights import read_state

Progress = Callable[[str, int, int | None], None]  # what is fetched, bytes done, bytes in all


def state(
    weights: Weights, *, name: str, offline: bool | None = None, progress: Progress | None = None
) -> dict[str, Tensor]:
    """The named tensors of the entry `name`, from the first source that has them."""
    for source in weights.sources:
        path = _here(source, weights)
        if path is not None:
            return read_state(
                path,
                sha256=weights.sha256,
                weights_key=weights.weights_key,
                strip_prefix=weights.strip_prefix,
            )
    raise UsageError(f"the weights of '{name}' are not on this machine")


def _here(source: Source, weights: Weights) -> Path | None:
    if source.kind == "embedded":
        assert weights.file is not None
        return EMBEDDED / weights.file
    return Path(source.where).expanduser() if source.kind == "file" else None
