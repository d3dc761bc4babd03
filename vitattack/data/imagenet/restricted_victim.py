"""Victims that decide among the classes of a data set alone, though they know all of ImageNet-1k."""

from __future__ import annotations

from torch import Tensor, nn

from vitattack.data.imagenet.classes import Classes
from vitattack.models.victim import Victim

IMAGENET_CLASSES = 1000


class _Asked(nn.Module):
    """The answers of an ImageNet model among some classes; its name is part of the digests of stored runs."""

    def __init__(self, inner: Victim, classes: Classes) -> None:
        super().__init__()
        self.inner = inner
        self.classes = classes
        self.members = classes.members  # a plain attribute, so that the digest of the victim covers it

    def forward(self, x: Tensor) -> Tensor:
        return self.classes.logits(self.inner(x))


def restrict_to_classes(victim: Victim, classes: Classes | None) -> Victim:
    """A 1000-way victim restricted to the classes of a data set; any other victim unchanged."""
    if classes is None or victim.num_classes != IMAGENET_CLASSES or len(classes) == IMAGENET_CLASSES:
        return victim
    return Victim(
        _Asked(victim, classes),
        name=victim.name,
        num_classes=len(classes),
        input_size=victim.size,
        transform=victim.transform,
        channels=victim.channels,
        any_size=victim.any_size,
    ).to(victim.mean.device)


def restrict_like(victim: Victim, other: nn.Module) -> Victim:
    """The victim restricted to the same classes as another one."""
    restricted = other.model if isinstance(other, Victim) else None
    return restrict_to_classes(victim, restricted.classes if isinstance(restricted, _Asked) else None)
