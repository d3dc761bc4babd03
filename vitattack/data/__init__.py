"""Images in [0,1] with their labels, by name: `load("cifar10[:1000]")`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitattack.data.dataset import DataSet, from_tensors, load, takes_transform
    from vitattack.data.imagenet.classes import asked

__all__ = ["DataSet", "asked", "from_tensors", "load", "takes_transform"]


def __getattr__(name: str) -> Any:
    """Imported on first use: which rows a text means is known without torch."""
    if name not in __all__:
        raise AttributeError(f"module 'vitattack.data' has no attribute '{name}'")
    module = "vitattack.data.imagenet.classes" if name == "asked" else "vitattack.data.dataset"
    return getattr(importlib.import_module(module), name)
