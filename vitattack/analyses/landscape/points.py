"""Accuracies of many models, stored and published, as points."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from vitattack.core.errors import UsageError
from vitattack.core.words import printable
from vitattack.models.zoo.catalogue import zoo_entries
from vitattack.models.zoo.entry import ZooEntry
from vitattack.models.zoo.figures import figures_of
from vitattack.models.zoo.reported import lowest_reported
from vitattack.records.stats import Accuracy, share
from vitattack.records.stored_runs import StoredRun, stored_runs

STORED, PUBLISHED = "stored", "published"
CLEAN, ROBUST = "clean", "robust"
# The family of an architecture by the beginning of its name; the first that fits counts.
FAMILIES = {
    "XCiT": "xcit",
    "Swin": "swin",
    "ConvNeXt": "convnext|open_clip:convnext",
    "WideResNet": "wide",
    "ResNet": "resne|seresne",
    "ViT": "vit|deit|cait|convit|levit|tora|open_clip:vit|small:tiny_vit",
    "other CNN": "densenet|vgg|efficientnet|small:tiny_cnn",
}


@dataclass(frozen=True)
class Point:
    """One model in one source, with accuracies by metric; an interval is known where the number of images is."""

    model: str
    origin: str
    values: Mapping[str, Accuracy]
    about: str = ""

    @property
    def entry(self) -> ZooEntry | None:
        return zoo_entries().get(self.model)

    @property
    def family(self) -> str:
        arch = ((self.entry.arch if self.entry else None) or "").lower()
        return next((name for name, start in FAMILIES.items() if re.match(start, arch)), "other")

    @property
    def sizes(self) -> tuple[int, int] | None:
        """Parameters and FLOPs, where the zoo knows them."""
        figures = figures_of(self.entry) if self.entry else None
        return (figures.parameters, figures.flops) if figures else None


def points(
    root: Path, data: str, threat: str, models: Sequence[str], metrics: Sequence[str], *, published: bool
) -> list[Point]:
    """Every model that has all of these metrics, by source; models are patterns."""
    found = [*_stored(root, data, threat)]
    found += _published(data, threat, metrics) if published else []
    known = [point for point in found if set(metrics) <= set(point.values)]
    for pattern in models:
        if not any(fnmatchcase(point.model, pattern) for point in known):
            raise UsageError(
                f"nothing is stored or published of '{printable(pattern)}' on {data} under {threat}: "
                "run vitattack eval first, or name another"
            )
    return [point for point in known if not models or any(fnmatchcase(point.model, pattern) for pattern in models)]


def _stored(root: Path, data: str, threat: str) -> Iterator[Point]:
    """The lowest robust accuracy of each model on the most images."""
    runs = [run for run in (stored_runs(root) if root.is_dir() else []) if _is_of(run, data, threat)]
    by_model: dict[str, list[StoredRun]] = {}
    for run in runs:
        assert run.job is not None
        by_model.setdefault(run.job.model, []).append(run)
    for model, own in sorted(by_model.items()):
        most = max(run.n for run in own)
        lowest = min((run for run in own if run.n == most), key=lambda run: run.robust.accuracy if run.robust else 1.0)
        assert lowest.job and lowest.clean and lowest.robust
        values = {CLEAN: lowest.clean, ROBUST: lowest.robust}
        yield Point(model, STORED, values, f"{lowest.job.attack}, {lowest.job.data}")


def _is_of(run: StoredRun, data: str, threat: str) -> bool:
    if run.state != "finished" or run.job is None or run.clean is None or run.robust is None:
        return False
    name = re.split(r"[\[@]", run.job.data)[0]
    return run.job.threat == threat and name in (data, f"{data}-demo")


def _published(data: str, threat: str, metrics: Sequence[str]) -> Iterator[Point]:
    for entry in zoo_entries().values():
        if entry.dataset != data:
            continue
        values, about = {}, []
        for metric in metrics:
            lowest = lowest_reported(entry, metric, threat)
            if lowest is None:
                continue
            about.append(f"{lowest.protocol or metric} ({lowest.source})")
            accuracy = lowest.value / 100
            values[metric] = (
                Accuracy(accuracy, accuracy, accuracy, 0, 0)
                if lowest.n is None
                else share(round(accuracy * lowest.n), lowest.n)._replace(accuracy=accuracy)
            )
        yield Point(entry.id, PUBLISHED, values, "; ".join(about))
