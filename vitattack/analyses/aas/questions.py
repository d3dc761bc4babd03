"""Questions about adaptive attention scaling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vitattack.analyses.base import Analysis
from vitattack.analyses.strength.questions import check_steps
from vitattack.core.errors import UsageError

PAPER = "Jain and Dutta, CVPR 2024"


@dataclass(frozen=True)
class OfScaling(Analysis):
    """A question about `aas(inner)`, beside the inner attack alone; everything is judged on the plain model."""

    threat: ClassVar[str | None] = "linf:8/255"
    images: ClassVar[int | None] = 50

    inner: str = "pgd(preset=aas2024)"
    search: str = ""  # options of aas, such as "restarts=1, batches=1" for a short search

    def scaled(self, inner: str, *more: str) -> str:
        """The text of aas around an inner attack."""
        return f"aas({', '.join(part for part in (inner, self.search, *more) if part)})"


@dataclass(frozen=True)
class SoftmaxGaps(OfScaling):
    """Gaps between the two highest scores of attention rows, block by block, before and after AAS finds its factors.

    A gap above 16.6 rounds the softmax of float32 to exactly one, one above 87.3 underflows.
    """

    work: ClassVar[str] = "vitattack.analyses.aas.gaps:softmax_gaps"
    paper: ClassVar[str] = f"{PAPER}, Fig. 2"


@dataclass(frozen=True)
class ScaledBlocks(OfScaling):
    """Robust accuracy under AAS against the number of attention layers that are scaled, from the first on."""

    work: ClassVar[str] = "vitattack.analyses.aas.ablations:scaled_blocks"
    paper: ClassVar[str] = f"{PAPER}, Fig. 3a"

    counts: tuple[int, ...] = ()  # without any, half of the layers and all of them

    def __post_init__(self) -> None:
        if any(count < 1 for count in self.counts) or len(set(self.counts)) < len(self.counts):
            raise UsageError("counts are numbers of layers from 1 on, each named once: write counts=2,4,6")


@dataclass(frozen=True)
class AasDepth(OfScaling):
    """How much AAS adds to its inner attack, against the number of attention layers of each model."""

    work: ClassVar[str] = "vitattack.analyses.aas.ablations:depth"
    paper: ClassVar[str] = f"{PAPER}, Fig. 3b"


@dataclass(frozen=True)
class AasSteps(OfScaling):
    """Robust accuracy under an attack and under AAS around it, against the number of steps of both."""

    work: ClassVar[str] = "vitattack.analyses.aas.ablations:steps_of_both"
    paper: ClassVar[str] = f"{PAPER}, Fig. 4"

    inner: str = "pgd(preset=aas2024, steps={steps})"
    steps: tuple[int, ...] = (10, 50, 100)

    def __post_init__(self) -> None:
        check_steps("aas-steps", "steps", self.steps)
        if "{steps}" not in self.inner:
            raise UsageError("inner= has no place for the number of steps: write inner=pgd(steps={steps})")


@dataclass(frozen=True)
class AasEps(OfScaling):
    """Robust accuracy under an attack and under AAS around it, over growing budgets: whether both reach zero."""

    work: ClassVar[str] = "vitattack.analyses.aas.ablations:budgets_of_both"
    paper: ClassVar[str] = f"{PAPER}, Fig. 5c and 5d"
    threat: ClassVar[str | None] = "linf:8/255,20/255,40/255,60/255,80/255,105/255"
