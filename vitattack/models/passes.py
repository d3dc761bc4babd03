"""Counts of forwards and backwards by hooks, equal for our attacks and foreign ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class Passes:
    """Rows that went forward through a module, and rows whose gradient came back through its output.

    `cut` says that an output had no gradient although one was asked for.
    """

    def __init__(self) -> None:
        self.forwards = 0
        self.backwards = 0
        self.cut = False

    def _forward(self, module: nn.Module, args: Any, output: Tensor) -> None:
        rows = len(args[0])
        self.forwards += rows
        if output.requires_grad:
            output.register_hook(lambda grad: self._backward(rows))  # type: ignore[no-untyped-call]
        elif args[0].requires_grad and torch.is_grad_enabled():
            self.cut = True

    def _backward(self, rows: int) -> None:
        self.backwards += rows


@contextmanager
def counting_passes(module: nn.Module) -> Iterator[Passes]:
    """Count the passes through a module inside the block."""
    passes = Passes()
    handle = module.register_forward_hook(passes._forward)
    try:
        yield passes
    finally:
        handle.remove()


def spread_passes(total: int, claimed: Tensor) -> Tensor:
    """Return (B,) passes per sample that add up to the counted total.

    An attack claims passes for each sample; the counter knows how many there were. Where the claims fall short (a
    foreign attack claims none) the difference is spread evenly.
    """
    gap = total - int(claimed.sum())
    if gap == 0 or len(claimed) == 0:
        return claimed
    base, extra = divmod(gap, len(claimed))
    return claimed + base + (torch.arange(len(claimed), device=claimed.device) < extra).long()
