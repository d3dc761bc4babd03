"""Flags an attack raises over samples on the way (evidence `flags`), and what is said of them beside the result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntFlag


class Flag(IntFlag):
    RANDOM = 1
    PROBABILITIES = 2
    DYNAMIC = 4
    ZERO_GRADIENT = 8
    LEFT_OUT = 16


SAID = {
    Flag.RANDOM: "AutoAttack's check finds the model random: use version='rand', which averages over its noise",
    Flag.PROBABILITIES: "AutoAttack's check finds probabilities instead of logits: attack the layer before",
    Flag.DYNAMIC: "AutoAttack's check finds gradients taken inside a forward: the model may adapt to what it is shown",
    Flag.ZERO_GRADIENT: "AutoAttack's check finds zero gradients of the DLR loss: gradient attacks may be blind here",
    Flag.LEFT_OUT: "the model has too few classes for the DLR loss: the stages that need it were left out",
}


def doubts_of(flags: Iterable[int]) -> Iterator[str]:
    """What a reader should know, from the flags of all samples of a job."""
    raised = 0
    for flag in flags:
        raised |= flag
    for flag, said in SAID.items():
        if raised & flag:
            yield said
