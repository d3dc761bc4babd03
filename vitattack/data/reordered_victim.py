"""Victims whose classes are numbered otherwise than those of the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from vitattack.core.progress import current_listener
from vitattack.data.dataset import DataSet
from vitattack.data.labels.class_names import order_by_name
from vitattack.models.victim import Victim


class _Reordered(nn.Module):
    """The answers of a victim in the order of the data's classes."""

    def __init__(self, inner: Victim, order: tuple[int, ...]) -> None:
        super().__init__()
        self.inner = inner
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.inner(x)
        return logits[:, self.order]


class _Classes(NamedTuple):
    names: Sequence[frozenset[str]]
    set_name: str


# Of the data that a victim is evaluated on: not an attribute, since it is no part of the function that a victim is.
_CLASSES: WeakKeyDictionary[Victim, _Classes] = WeakKeyDictionary()


def match_labels(victim: Victim, labels: Sequence[str] | None, images: DataSet) -> Victim:
    """The victim with its classes in the order of the data's, which are matched by name where both have names."""
    names = images.class_aliases
    if names is None:
        return victim
    matched = _matched(victim, labels, _Classes(names, images.set_name))
    if matched is not victim:
        current_listener().note(f"{victim.name}: its classes are put in the order of {images.set_name}, by their names")
    return matched


def remember_classes(victim: Victim, images: DataSet) -> None:
    """Remember which classes a victim decides among, for other models that are asked for its sake."""
    names = images.class_aliases
    if names is not None:
        _CLASSES[victim] = _Classes(names, images.set_name)


def match_labels_of(other: Victim, labels: Sequence[str] | None, victim: nn.Module) -> Victim:
    """Another model with its classes in the order of a victim's, where that is remembered."""
    classes = _CLASSES.get(victim) if isinstance(victim, Victim) else None
    return other if classes is None else _matched(other, labels, classes)


def _matched(victim: Victim, labels: Sequence[str] | None, classes: _Classes) -> Victim:
    order = None if labels is None else order_by_name(labels, classes.names, f"'{classes.set_name}'")
    if order is None:
        return victim
    return Victim(
        _Reordered(victim, order),
        name=victim.name,
        num_classes=victim.num_classes,
        input_size=victim.size,
        transform=victim.transform,
        channels=victim.channels,
        any_size=victim.any_size,
    ).to(victim.mean.device)
