"""Victims whose classes are numbered otherwise than those of the data."""

from __future__ import annotations

from collections.abc import Sequence

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


def match_labels(victim: Victim, labels: Sequence[str] | None, images: DataSet) -> Victim:
    """The victim with its classes in the order of the data's, which are matched by name where both have names."""
    names = images.class_aliases
    order = order_by_name(labels, names, f"'{images.set_name}'") if labels is not None and names is not None else None
    if order is None:
        return victim
    current_listener().note(f"{victim.name}: its classes are put in the order of {images.set_name}, by their names")
    return Victim(
        _Reordered(victim, order),
        name=victim.name,
        num_classes=victim.num_classes,
        input_size=victim.size,
        transform=victim.transform,
        channels=victim.channels,
    ).to(victim.mean.device)
