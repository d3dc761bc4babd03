"""Gradient checkpointing switched off: attacks differentiate with respect to pixels, through taps that recomputing misses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils import checkpoint


class _Direct:
    """Stands in for the autograd function of reentrant checkpointing."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        return function(*args)


def _nothing_around(*_: Any, **__: Any) -> Iterator[None]:
    """Stands in for what happens before and after a checkpointed forward that is not reentrant."""
    yield


# Names in torch.utils.checkpoint; those of generators have changed between versions of torch.
_STAND_INS: dict[str, Any] = {
    "CheckpointFunction": _Direct,
    "_checkpoint_without_reentrant_generator": _nothing_around,
    "_checkpoint_without_reentrant_generator_impl": _nothing_around,
}


@contextmanager
def without_checkpointing() -> Iterator[None]:
    """Run checkpointed parts of a model as if they were not, at the price of memory.

    Reentrant checkpointing refuses gradients with respect to inputs. The other kind runs parts again during the backward
    pass, after a tap on their attention has gone, and so differentiates another function.
    """
    names = vars(checkpoint)
    before = {name: names[name] for name in _STAND_INS if name in names}
    names.update({name: _STAND_INS[name] for name in before})
    try:
        yield
    finally:
        names.update(before)
