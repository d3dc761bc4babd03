"""Flags that AutoAttack's own checks raise (evidence `flags`), and the doubts they become."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntFlag


class Flag(IntFlag):
    """Findings of AutoAttack's checks, stored as bits."""

    RANDOM = 1
    PROBABILITIES = 2
    DYNAMIC = 4
    ZERO_GRADIENT = 8
    LEFT_OUT = 16


DOUBTS = {
    Flag.RANDOM: "AutoAttack's check finds the model random: use version='rand', which averages over its noise",
    Flag.PROBABILITIES: "AutoAttack's check finds probabilities instead of logits: attack the layer before",
    Flag.DYNAMIC: "AutoAttack's check finds gradients taken inside a forward: the model may adapt to its inputs",
    Flag.ZERO_GRADIENT: "AutoAttack's check finds zero gradients of the DLR loss: gradient attacks may be blind here",
    Flag.LEFT_OUT: "the model has too few classes for the DLR loss: the stages that need it were left out",
}


def doubts_of(flags: Iterable[int]) -> Iterator[str]:
    """Doubts for the flags of all samples of a job."""
    raised = 0
    for flag in flags:
        raised |= flag
    for flag, doubt in DOUBTS.items():
        if raised & flag:
            yield doubt
