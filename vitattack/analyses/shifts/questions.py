"""What is asked about images that are unlike those of training. Nothing is attacked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from vitattack.analyses.base import Analysis
from vitattack.analyses.shifts.sets import Corruption, chosen_kinds, published_sets
from vitattack.core.errors import UsageError


@dataclass(frozen=True)
class Corruptions(Analysis):
    """Accuracy under common corruptions by kind and severity: acc-75, acc-95, mCE.

    `--data imagenet-c`, `cifar10-c` and `cifar100-c` are the published images; those of any other data are made here, 17 kinds
    with the published strengths (without frost and spatter). acc-75 is the mean over the 15 kinds and 5 severities, acc-95 that
    with the four extra kinds, mCE the mean over the 15 kinds of the error relative to AlexNet's on ImageNet-C, in %.
    """

    work: ClassVar[str] = "vitattack.analyses.shifts.corruptions:corruptions"
    paper: ClassVar[str] = "Bhojanapalli et al. 2021, Fig. 2; Hendrycks and Dietterich 2019"
    images: ClassVar[int | None] = 100

    kinds: tuple[str, ...] = ()  # without any, all there are
    severities: tuple[int, ...] = (1, 2, 3, 4, 5)

    def __post_init__(self) -> None:
        if not self.severities or not set(self.severities) <= {1, 2, 3, 4, 5}:
            raise UsageError("severities are 1 to 5: write severities=1,3,5")
        if len({*self.kinds}) < len(self.kinds) or len({*self.severities}) < len(self.severities):
            raise UsageError("a kind or a severity is named twice: name each once")

    def data_opened(self, data: str, data_dir: Path | None) -> tuple[str, ...]:
        published = self.published(data, data_dir)
        if not published:
            self.made_here()
        return tuple(each.text for each in published) or (data,)

    def published(self, data: str, data_dir: Path | None) -> tuple[Corruption, ...]:
        """The published sets that are asked for; none where the corruptions are made here."""
        return published_sets(data, data_dir, self.kinds, self.severities)

    def made_here(self) -> tuple[Corruption, ...]:
        """The corruptions that are asked for, of data that nobody publishes corrupted."""
        return tuple(Corruption(kind, severity) for kind in chosen_kinds(self.kinds) for severity in self.severities)
