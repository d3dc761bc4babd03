"""Questions about many models at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from vitattack.analyses.base import Analysis
from vitattack.core.errors import UsageError


@dataclass(frozen=True)
class OfTheStore(Analysis):
    """A question to stored runs and published numbers; models are names or patterns such as `*xcit*`, all without any."""

    threat: ClassVar[str | None] = "linf:8/255"
    data: ClassVar[str | None] = "cifar10"  # and its parts, such as cifar10-demo
    from_store: ClassVar[bool] = True
    fewest: ClassVar[int] = 0

    published: bool = True

    def data_opened(self, data: str, data_dir: Path | None) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True)
class Scatter(OfTheStore):
    """Robust against clean accuracy of many models: stored runs, and published numbers of the zoo.

    Of a model's stored runs under the budget it is the one of the lowest robust accuracy, of its published numbers the lowest.
    """

    work: ClassVar[str] = "vitattack.analyses.landscape.scatter:scatter"
    paper: ClassVar[str] = "ViTs beat WideResNets, Fig. 1"


@dataclass(frozen=True)
class Scaling(OfTheStore):
    """Accuracy of many models against their parameters and FLOPs, by family: stored runs, and published numbers of the zoo.

    metric: robust, clean, or another that the zoo reports, such as imagenet-a.
    """

    work: ClassVar[str] = "vitattack.analyses.landscape.scaling:scaling"
    paper: ClassVar[str] = "Bhojanapalli et al. 2021, Fig. 4 and 30"

    metric: str = "robust"

    def __post_init__(self) -> None:
        if not self.metric:
            raise UsageError("metric= names none: write metric=robust or metric=clean")
