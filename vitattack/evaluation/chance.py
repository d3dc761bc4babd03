"""Clean accuracy at the level of chance: usually a normalisation or a channel order that is not the model's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from vitattack.core.percent import percent
from vitattack.models.normalise import NORMALISERS, Normaliser
from vitattack.models.victim import Victim, frozen
from vitattack.records import stats
from vitattack.records.record import SampleRecord

FEWEST, TRIED = 20, 64


def at_chance(records: Sequence[SampleRecord], classes: int) -> bool:
    """Whether guessing would explain the clean accuracy; never for a handful of images."""
    return len(records) >= FEWEST and _guessed(stats.clean_accuracy(records), classes)


def chance_doubt(records: Sequence[SampleRecord], victim: Victim, x: Tensor, y: Tensor) -> str:
    """The doubt, with the normalisation and channel order that helps most on the images x, if any does.

    Of those that only chance puts in order, the first is named: CIFAR-10's before CLIP's.
    """
    found = stats.clean_accuracy(records)
    said = f"clean accuracy {percent(found.accuracy)} is no better than guessing among {victim.num_classes} classes"
    tried = {what: stats.share(_correct(victim, other, y), len(y)) for what, other in _other_inputs(victim, x)}
    most = max((share.accuracy for share in tried.values()), default=0.0)
    best = next((what for what, share in tried.items() if share.high >= most), None)
    if best is None or _guessed(tried[best], victim.num_classes):
        return f"{said}, and no other known normalisation or channel order helps: check weights, classes and labels"
    return f"{said}: {best} gets {tried[best].correct} of {len(y)} images right, so use that"


def _guessed(accuracy: stats.Accuracy, classes: int) -> bool:
    return accuracy.low <= 1 / classes


def _correct(victim: Victim, x: Tensor, y: Tensor) -> int:
    with frozen(victim), torch.no_grad():
        return int((victim(x).argmax(1) == y).sum())


def _other_inputs(victim: Victim, x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Images from which the victim, by its own normalisation, makes those of another one."""
    normalising = next((m for m in victim.modules() if isinstance(m, Victim) and m.normalises), victim)
    mean, std = normalising.mean, normalising.std
    orders = {"": x, " with channels in the order BGR": x.flip(1)} if x.shape[1] == 3 else {"": x}
    for order, images in orders.items():
        if order:
            yield f"the declared normalisation{order}", images
        for name, normaliser in NORMALISERS.items():
            if normaliser is None or x.shape[1] == len(normaliser[0]):
                yield f"normalisation '{name}'{order}", _normalised(images, normaliser) * std + mean


def _normalised(x: Tensor, normaliser: Normaliser | None) -> Tensor:
    if normaliser is None:
        return x
    mean, std = (x.new_tensor(values).view(1, -1, 1, 1) for values in normaliser)
    return (x - mean) / std
