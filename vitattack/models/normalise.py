"""Normalisations by name: they belong to a checkpoint, never to an architecture."""

from __future__ import annotations

import math

from vitattack.errors import UsageError

Normaliser = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation per channel

NORMALISERS: dict[str, Normaliser | None] = {
    "none": None,
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}


def normaliser(text: str) -> Normaliser | None:
    """Mean and standard deviation of `imagenet`, `half` and so on, or of MEAN,MEAN,MEAN/STD,STD,STD; None for [0,1]."""
    if text in NORMALISERS:
        return NORMALISERS[text]
    try:
        mean, std = (tuple(float(v) for v in part.split(",")) for part in text.split("/"))
    except ValueError:
        mean, std = (), ()
    if len(mean) not in (1, 3) or len(std) != len(mean) or not all(map(math.isfinite, mean + std)) or min(std) <= 0:
        raise UsageError(
            f"normalize '{text}' is not understood: write {'|'.join(NORMALISERS)} or 0.5,0.5,0.5/0.5,0.5,0.5"
        )
    return mean, std
