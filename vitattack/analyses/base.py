"""An analysis: a frozen value that says what is asked of models. Importing one loads no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vitattack.core.errors import UsageError
from vitattack.core.shown import made_by

if TYPE_CHECKING:
    from vitattack.analyses.findings import Findings
    from vitattack.analyses.run import AnalysisRun


@dataclass(frozen=True)
class Analysis:
    """A question put to models; its fields are what `name=value` can change, each of them with a default.

    The first line of the docstring is its summary in lists, and says what is measured.
    """

    work: ClassVar[str]  # "module:function", called with this value and an `AnalysisRun`; returns `Findings`
    paper: ClassVar[str]
    threat: ClassVar[str | None] = None  # the budgets without --threat; None where nothing is attacked
    images: ClassVar[int | None] = None  # how many without --limit; None for all
    data: ClassVar[str | None] = None  # the set without --data, where it is not the usual one
    fewest: ClassVar[int] = 1  # models
    most: ClassVar[int | None] = None
    of_runs: ClassVar[bool] = False  # the folder of a training run stands for its checkpoints, epoch by epoch
    from_store: ClassVar[bool] = False  # reads stored runs and published numbers, and opens no model

    def run(self, run: AnalysisRun) -> Findings:
        """Carry out the analysis."""
        findings: Findings = made_by(self.work, self, run)
        return findings

    def data_opened(self, data: str, data_dir: Path | None) -> tuple[str, ...]:
        """The data texts that are read where --data says this."""
        return (data,)

    @classmethod
    def summary(cls) -> str:
        return (cls.__doc__ or "").strip().splitlines()[0].rstrip(".")

    def settings(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def parameters(cls) -> tuple[str, ...]:
        return tuple(each.name for each in fields(cls))


def at_least(analysis: str, name: str, value: float, least: float) -> None:
    """Refuse a parameter below the least that makes sense."""
    if value < least:
        raise UsageError(f"{name}={value:g} is too few for {analysis}: use at least {least:g}")
