"""Normalisations by name; they belong to a checkpoint, never to an architecture."""

from __future__ import annotations

from collections.abc import Sequence

from vitattack.core.errors import UsageError

Normaliser = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation per channel

NORMALISERS: dict[str, Normaliser | None] = {
    "none": None,
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}


LARGEST = 1e6  # pixels are in [0,1]


def is_normaliser(mean: Sequence[float], std: Sequence[float]) -> bool:
    """Whether a mean and a standard deviation can normalise images: 1 or 3 channels, finite, no division by 0."""
    values = [*mean, *std]
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) and abs(v) < LARGEST for v in values)
    return numbers and len(mean) in (1, 3) and len(std) == len(mean) and min(std) > 0


def parse_normaliser(text: str) -> Normaliser | None:
    """Parse `imagenet`, `half` and so on, or MEAN,MEAN,MEAN/STD,STD,STD; None stands for plain [0,1]."""
    if text in NORMALISERS:
        return NORMALISERS[text]
    try:
        mean, std = (tuple(float(v) for v in part.split(",")) for part in text.split("/"))
    except ValueError:
        mean, std = (), ()
    if not is_normaliser(mean, std):
        raise UsageError(
            f"normalize '{text}' is not understood: write {'|'.join(NORMALISERS)} or 0.5,0.5,0.5/0.5,0.5,0.5"
        )
    return mean, std
