"""Runs side by side: those on the same images are one set, those on one model under one threat are one row of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from vitattack.records import stats
from vitattack.records.stats import Accuracy
from vitattack.records.stored_runs import StoredRun
from vitattack.report.overview.run import ShownRun
from vitattack.report.overview.samples import Column


@dataclass(frozen=True)
class Row:
    """All attacks on one model under one threat, on the same images."""

    model: str
    threat: str
    runs: tuple[ShownRun, ...]

    @property
    def clean(self) -> Accuracy:
        return self.runs[0].clean

    @cached_property
    def worst(self) -> Accuracy:
        """The worst case per sample over all attacks."""
        return self.runs[0].robust if len(self.runs) == 1 else stats.worst_case([run.verdicts for run in self.runs])

    @property
    def doubts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(doubt for run in self.runs for doubt in run.doubts))

    @property
    def passes(self) -> float:
        """Passes per attacked sample, of all attacks together."""
        return sum(run.forwards + run.backwards for run in self.runs)

    @property
    def seconds(self) -> float:
        return sum(run.seconds for run in self.runs)


@dataclass(frozen=True)
class ImageSet:
    """Runs on the same images: they can be compared image by image."""

    data: str
    runs: tuple[ShownRun, ...]

    @property
    def n(self) -> int:
        return self.runs[0].n

    @property
    def index(self) -> Column:
        return self.runs[0].samples.index

    @property
    def label(self) -> Column:
        return self.runs[0].samples.label

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        by_place: dict[tuple[str, str, str], list[ShownRun]] = {}
        for run in self.runs:
            weights = run.job.weights.partition(" ")[0]  # without those of models that candidates came from
            by_place.setdefault((run.job.model, weights, run.job.threat), []).append(run)
        return tuple(Row(model, threat, tuple(runs)) for (model, _, threat), runs in by_place.items())


@dataclass(frozen=True)
class Overview:
    """Everything that a page or a plot can show of some stores."""

    runs: tuple[ShownRun, ...]
    unfinished: tuple[StoredRun, ...] = ()  # and damaged ones: they have no number

    @cached_property
    def sets(self) -> tuple[ImageSet, ...]:
        """The sets of images, that with the most runs first."""
        by_images: dict[tuple[str, bytes], list[ShownRun]] = {}
        for run in self.runs:
            by_images.setdefault((run.job.pixels, run.samples.index.tobytes()), []).append(run)
        sets = [ImageSet(runs[0].job.data, _in_order(runs)) for runs in by_images.values()]
        return tuple(sorted(sets, key=lambda images: -len(images.runs)))

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(row for images in self.sets for row in images.rows)


def _in_order(runs: Sequence[ShownRun]) -> tuple[ShownRun, ...]:
    """The runs by model, threat and falling accuracy, whatever the names of their folders."""
    return tuple(sorted(runs, key=lambda run: (run.job.model, run.job.threat, -run.robust.accuracy, run.job.attack)))
