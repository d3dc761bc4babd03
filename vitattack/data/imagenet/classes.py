"""Data sets whose classes are parts of ImageNet-1k, and what a 1000-way model is asked there."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitattack.data.labels.imagenet import synsets
from vitattack.models.victim import Victim

FULL = 1000


@dataclass(frozen=True)
class Classes:
    """The classes of a data set, each as the ImageNet-1k classes that stand for it."""

    name: str
    members: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.members)

    @property
    def sha256(self) -> str:
        """Of the synsets, one class per line in the order of the labels."""
        lines = [" ".join(synsets()[number] for number in part) for part in self.members]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def logits(self, logits: Tensor) -> Tensor:
        """Plain logits of the members where each class has one, else the log of their mean probability.

        The mean over members, not the sum or the largest, is the rule of Geirhos et al. (2019).
        """
        if all(len(member) == 1 for member in self.members):
            return logits[:, [member[0] for member in self.members]]
        shares = logits.log_softmax(1)
        means = [shares[:, list(part)].logsumexp(1) - torch.tensor(float(len(part))).log() for part in self.members]
        return torch.stack(means, 1)


def subset(name: str, numbers: tuple[int, ...]) -> Classes:
    return Classes(name, tuple((number,) for number in numbers))


class _Asked(nn.Module):
    def __init__(self, inner: Victim, classes: Classes) -> None:
        super().__init__()
        self.inner = inner
        self.classes = classes
        self.members = classes.members  # plain, so that the digest of the victim sees it

    def forward(self, x: Tensor) -> Tensor:
        return self.classes.logits(self.inner(x))


def asked(victim: Victim, classes: Classes | None) -> Victim:
    """The victim as the data set asks it: a 1000-way model decides among the classes of the set alone."""
    if classes is None or victim.num_classes != FULL or len(classes) == FULL:
        return victim
    return Victim(
        _Asked(victim, classes),
        name=victim.name,
        num_classes=len(classes),
        input_size=victim.input_size,
        transform=victim.transform,
        channels=victim.channels,
    ).to(victim.mean.device)


def asked_like(victim: Victim, other: nn.Module) -> Victim:
    """The victim asked among the same classes as the other one."""
    model = getattr(other, "model", None)
    return asked(victim, model.classes if isinstance(model, _Asked) else None)
