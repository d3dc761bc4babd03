"""Questions about images that are unlike those of training. Nothing is attacked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from vitattack.analyses.base import Analysis
from vitattack.analyses.shifts.sets import Corruption, chosen_kinds, published_sets
from vitattack.core.errors import UsageError
from vitattack.data.rows import split_rows


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


@dataclass(frozen=True)
class OfOneSet(Analysis):
    """A question that one data set answers."""

    data: ClassVar[str | None]

    def data_opened(self, data: str, data_dir: Path | None) -> tuple[str, ...]:
        name, rows = split_rows(data)
        if name != self.data:
            raise UsageError(
                f"this is asked of {self.data} alone, not of '{name[:40]}': drop --data, and use --limit for a part"
            )
        return (self.opened + (f"[{rows}]" if rows else ""),)

    @property
    def opened(self) -> str:
        """The set as it is opened, without rows."""
        return str(self.data)


@dataclass(frozen=True)
class ImagenetVariant(OfOneSet):
    """Accuracy on a set with 200 of ImageNet's classes, decided among those and among all."""

    work: ClassVar[str] = "vitattack.analyses.shifts.variants:variant"
    paper: ClassVar[str] = "Bhojanapalli et al. 2021, Table 3; Li and Xu 2023, Table 1"
    kind: ClassVar[str]

    @property
    def opened(self) -> str:
        return f"{self.data}/unrestricted"


@dataclass(frozen=True)
class ImagenetA(ImagenetVariant):
    """Accuracy on ImageNet-A, natural images that fool a ResNet-50: decided among its 200 classes, and among all."""

    data: ClassVar[str | None] = "imagenet-a"
    kind: ClassVar[str] = "a"


@dataclass(frozen=True)
class ImagenetR(ImagenetVariant):
    """Accuracy on ImageNet-R, renditions such as paintings and toys: decided among its 200 classes, and among all."""

    data: ClassVar[str | None] = "imagenet-r"
    kind: ClassVar[str] = "r"


@dataclass(frozen=True)
class ShapeBias(OfOneSet):
    """Shape against texture on cue-conflict images: accuracy on the shape, and the share of shape among decisions for either.

    The 16 categories are decided by the mean probability of their ImageNet classes. Shape accuracy is over all images; shape
    bias, another thing, is over those whose shape and texture differ and where one of the two is chosen.
    """

    work: ClassVar[str] = "vitattack.analyses.shifts.shape_bias:shape_bias"
    paper: ClassVar[str] = "Geirhos et al. 2019; Bhojanapalli et al. 2021, Table 3"
    data: ClassVar[str | None] = "cue-conflict"
