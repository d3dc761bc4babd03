"""Data sets by name: images in [0,1] with labels, as in `load_data("cifar10[:1000]")`."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitattack.data.dataset import DataSet, from_tensors, load_data
    from vitattack.data.imagenet.restricted_victim import restrict_to_classes
    from vitattack.data.in_memory import from_python
    from vitattack.data.reordered_victim import match_labels, remember_classes
    from vitattack.data.request import check_data, takes_transform

__all__ = [
    "DataSet",
    "check_data",
    "from_python",
    "from_tensors",
    "load_data",
    "match_labels",
    "remember_classes",
    "restrict_to_classes",
    "takes_transform",
]

# Imported on first use, so that data texts can be read without torch.
_MODULES = {
    "DataSet": "vitattack.data.dataset",
    "check_data": "vitattack.data.request",
    "from_python": "vitattack.data.in_memory",
    "from_tensors": "vitattack.data.dataset",
    "load_data": "vitattack.data.dataset",
    "match_labels": "vitattack.data.reordered_victim",
    "remember_classes": "vitattack.data.reordered_victim",
    "restrict_to_classes": "vitattack.data.imagenet.restricted_victim",
    "takes_transform": "vitattack.data.request",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'vitattack.data' has no attribute '{name}'")
    return resolve_name(f"{_MODULES[name]}:{name}")
