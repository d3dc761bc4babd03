"""Tensors inside vmap as what they are outside: with the mapped axes in front."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch._C._functorch import (
    _add_batch_dim,
    get_unwrapped,
    is_batchedtensor,
    maybe_get_bdim,
    maybe_get_level,
)

Arguments = tuple[list[Any], dict[str, Any]]


def is_mapped(value: Any) -> bool:
    """Whether a value is a tensor inside vmap."""
    return isinstance(value, Tensor) and bool(is_batchedtensor(value))


def storage_of(tensor: Tensor) -> int:
    """Return the address of the storage of a tensor, inside vmap or not; 0 where it has none."""
    while is_mapped(tensor):
        tensor = get_unwrapped(tensor)
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # nested and fake tensors
        return 0


def unmapped(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Arguments, Callable[[Tensor], Tensor]]:
    """Return the arguments with their mapped axes in front, and the function that maps a result over them again."""
    levels = sorted({level for value in (*args, *kwargs.values()) for level in _levels(value)})
    if not levels:
        return (list(args), dict(kwargs)), lambda out: out

    def again(out: Tensor) -> Tensor:
        for level in levels:
            out = _add_batch_dim(out, 0, level)
        return out

    flat = ([_in_front(v, levels) for v in args], {key: _in_front(v, levels) for key, v in kwargs.items()})
    return flat, again


def _levels(value: Any) -> list[int]:
    found = []
    while is_mapped(value):
        found.append(maybe_get_level(value))
        value = get_unwrapped(value)
    return found


def _in_front(value: Any, levels: Sequence[int]) -> Any:
    if not isinstance(value, Tensor) or not (value.dim() or is_mapped(value)):
        return value
    axes: dict[int, int] = {}
    while is_mapped(value):
        level, axis = maybe_get_level(value), maybe_get_bdim(value)
        value = get_unwrapped(value)
        axes = {one: at + (at >= axis) for one, at in axes.items()} | {level: axis}
    known = [level for level in levels if level in axes]
    value = value.movedim([axes[level] for level in known], list(range(len(known))))
    for at, level in enumerate(levels):
        if level not in axes:
            value = value.unsqueeze(at)
    return value
