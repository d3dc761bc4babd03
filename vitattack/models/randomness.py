"""Recognition of models that answer the same images differently: by chance, or by the other images of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from vitattack.core.rng import SampleRng, seeded
from vitattack.models.base import Attackable
from vitattack.models.victim import Victim, frozen
from vitattack.models.views import Double

DRAWS = 3  # forwards of the same images that are compared
# Relative to the largest logit. Repeated forwards are equal to the bit on most machines, and nearly so on the others;
# batches of another size round differently, and a difference that double precision does not remove is no rounding.
REPEATED, REBATCHED, CERTAIN = 1e-5, 1e-4, 1e-2


class Variation(NamedTuple):
    """What the answers to an image vary with, the largest difference of a logit, and whether a seed repeats them."""

    cause: Literal["nothing", "batch", "chance"] = "nothing"
    gap: float = 0.0
    repeatable: bool = True


STEADY = Variation()


def variation(victim: Victim, x: Tensor, rng: SampleRng, batch_size: int) -> Variation:
    """Compare forwards of some images: repeated ones, and ones in batches of half the size with other neighbours."""

    def answers(number: int) -> Tensor:
        with seeded(rng.child("draw", number)):
            return torch.cat([victim(part) for part in torch.split(x, batch_size)])

    with frozen(victim), torch.no_grad():
        first = answers(0)
        scale = _scale(first)
        gap = max(difference(first, answers(number)) for number in range(1, DRAWS))
        if gap > REPEATED * scale:
            return Variation("chance", gap, difference(first, answers(0)) <= REPEATED * scale)
        gap = _rebatched(victim, x, first, batch_size)
        by_batch = gap > REBATCHED * scale and _is_no_rounding(victim, x, batch_size, gap, scale)
        return Variation("batch", gap) if by_batch else STEADY


def differing(one: Tensor, two: Tensor) -> Tensor:
    """(B,) rows of logits that differ by more than those of repeated forwards do."""
    return _distance(one, two).amax(1) > REPEATED * _scale(one)


def difference(one: Tensor, two: Tensor) -> float:
    """Largest difference of a logit; infinite if only one of the two is finite."""
    return float(_distance(one, two).max()) if one.numel() else 0.0


@contextmanager
def marked_random(victim: Victim, is_random: bool) -> Iterator[None]:
    """Let attacks and the judge know for a while that a victim is random."""
    if not is_random or victim.is_random:
        yield
        return
    victim.known_random = True
    try:
        yield
    finally:
        del victim.known_random  # back to the default of the class: an attribute would be part of the victim's digest


def _distance(one: Tensor, two: Tensor) -> Tensor:
    same = (one == two) | (one.isnan() & two.isnan())
    return (one - two).abs().masked_fill(same, 0.0).nan_to_num(torch.inf)


def _scale(logits: Tensor) -> float:
    finite = logits[torch.isfinite(logits)]
    return float(finite.abs().max()) if finite.numel() else 1.0


def _rebatched(victim: Attackable, x: Tensor, first: Tensor, batch_size: int) -> float:
    """Difference of the answers in batches of half the size, each of every other image."""
    order = torch.cat([torch.arange(start, len(x), 2) for start in (0, 1)]).to(x.device)
    half = max(1, min(batch_size, len(x)) // 2)
    apart = torch.cat([victim(part) for part in torch.split(x[order], half)])
    return difference(first[order], apart)


def _is_no_rounding(victim: Victim, x: Tensor, batch_size: int, gap: float, scale: float) -> bool:
    """Whether a difference between batches stays in double precision; where there is none, whether it is a large one."""
    try:
        double = Double(victim)
        exact = torch.cat([double(part) for part in torch.split(x, batch_size)])
        return _rebatched(double, x, exact, batch_size) > 0.1 * gap
    except (RuntimeError, TypeError, ValueError):  # a model of one precision, or a machine without doubles
        return gap > CERTAIN * scale
