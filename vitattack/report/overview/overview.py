"""Runs side by side: those on the same images are one set, those on one model under one threat are one row of it."""

from __future__ import annotations

import re
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
        groups: list[_Group] = []
        for run in self.runs:
            group = next((group for group in groups if group.fits(run)), None)
            if group is None:
                groups.append(group := _Group(run))
            group.add(run)
        sets = [ImageSet(group.runs[0].job.data, _in_order(group.runs)) for group in groups]
        return tuple(sorted(sets, key=lambda images: -len(images.runs)))

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(row for images in self.sets for row in images.rows)


class _Group:
    """Runs on the same images: equal pixels, or the same rows of a data set in another preparation, as for larger models."""

    def __init__(self, first: ShownRun) -> None:
        self.samples = _samples(first)
        self.runs: list[ShownRun] = []
        self._pixels: set[str] = set()
        self._prepared: set[str] = set()
        self._rows = _prepared(first)[0]

    def fits(self, run: ShownRun) -> bool:
        rows, transform = _prepared(run)
        other = bool(rows[1] and transform) and rows == self._rows and transform not in self._prepared
        return self.samples == _samples(run) and (_pixels(run) in self._pixels or other)

    def add(self, run: ShownRun) -> None:
        self.runs.append(run)
        self._pixels.add(_pixels(run))
        self._prepared.add(_prepared(run)[1])


def _samples(run: ShownRun) -> tuple[bytes, bytes]:
    return run.samples.index.tobytes(), run.samples.label.tobytes()


def _pixels(run: ShownRun) -> str:
    return run.job.pixels.partition(" ")[0]  # without those that candidates of another model came from


def _prepared(run: ShownRun) -> tuple[tuple[str, str], str]:
    """The rows of the data set, and how their images were prepared; empty texts where that is not stored."""
    protocol = run.provenance.get("protocol")
    facts = protocol if isinstance(protocol, dict) else {}
    return (run.job.data, str(facts.get("rows_sha256") or "")), str(facts.get("transform") or "")


def _in_order(runs: Sequence[ShownRun]) -> tuple[ShownRun, ...]:
    """The runs by model, threat and falling accuracy, whatever the names of their folders."""
    return tuple(
        sorted(runs, key=lambda run: (run.job.model, _natural(run.job.threat), -run.robust.accuracy, run.job.attack))
    )


def _natural(text: str) -> list[tuple[int, str]]:
    """A key by which 2/255 comes before 16/255."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,9})", text)]
