"""Classes made of ImageNet-1k classes: the label spaces of its variants and subsets."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitattack.data.labels.imagenet import synsets

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Classes:
    """The classes of a data set, each as the ImageNet-1k classes that stand for it."""

    name: str
    members: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.members)

    @property
    def sha256(self) -> str:
        """The hash of the synsets, one class per line in the order of the labels."""
        lines = [" ".join(synsets()[number] for number in part) for part in self.members]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def logits(self, logits: Tensor) -> Tensor:
        """Plain logits of the members where each class has one, else the log of their mean probability.

        The mean over members, not the sum or the largest, is the rule of Geirhos et al. (2019).
        """
        import torch

        if all(len(member) == 1 for member in self.members):
            return logits[:, [member[0] for member in self.members]]
        shares = logits.log_softmax(1)
        means = [shares[:, list(part)].logsumexp(1) - torch.tensor(float(len(part))).log() for part in self.members]
        return torch.stack(means, 1)


def single_classes(name: str, numbers: tuple[int, ...]) -> Classes:
    """Classes that are one ImageNet-1k class each."""
    return Classes(name, tuple((number,) for number in numbers))
