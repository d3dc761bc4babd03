"""Comparison of a benchmark's results with published numbers, and the models on the front of robustness against size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from vitattack.bench.run.results import BenchmarkResult, CellResult
from vitattack.bench.schema import CLEAN, Reference
from vitattack.bench.tasks import CellStatus
from vitattack.models.zoo.catalogue import zoo_entries
from vitattack.models.zoo.figures import ModelFigures, figures_of
from vitattack.records import stats
from vitattack.records.stats import Accuracy, Gap


@dataclass(frozen=True)
class ComparedNumber:
    """An accuracy in a table: measured, published or both.

    Clean accuracy is one number per model: its attack is `clean`, its threat empty, its seed None.
    """

    model: str
    attack: str
    threat: str
    seed: int | None
    status: CellStatus
    measured: Accuracy | None
    published: Reference | None
    result: CellResult  # of the cell that the measured number comes from

    @cached_property
    def gap(self) -> Gap | None:
        """Measured minus published accuracy."""
        if self.measured is None or self.published is None:
            return None
        return stats.gap(self.measured, self.published.value / 100, self.published.n)

    @property
    def share(self) -> float | None:
        """Measured accuracy, or else the published one."""
        if self.measured is not None:
            return self.measured.accuracy
        return self.published.value / 100 if self.published else None


def compared_numbers(results: BenchmarkResult) -> tuple[ComparedNumber, ...]:
    """Clean and robust accuracies model by model, in the order of the file; cells without any number are left out."""
    numbers: list[ComparedNumber] = []
    for label in dict.fromkeys(result.cell.label for result in results.cells):
        of_model = [result for result in results.cells if result.cell.label == label]
        numbers += [_clean(results, label, of_model), *map(_robust, of_model)]
    return tuple(number for number in numbers if number.status != "published" or number.published is not None)


def _clean(results: BenchmarkResult, label: str, of_model: Sequence[CellResult]) -> ComparedNumber:
    """Clean accuracy from the cell with most images: all cells of a model see the same ones."""
    largest = max(of_model, key=lambda result: result.n or 0)
    published = results.bench.published(label, CLEAN, "")
    return ComparedNumber(label, CLEAN, "", None, largest.status, largest.clean, published, largest)


def _robust(result: CellResult) -> ComparedNumber:
    cell = result.cell
    return ComparedNumber(
        model=cell.label,
        attack=cell.attack_label,
        threat=cell.threat,
        seed=cell.seed,
        status=result.status,
        measured=result.robust,
        published=cell.published,
        result=result,
    )


class ModelPoint(NamedTuple):
    """A model on the plot of robustness against size.

    `smallest` and `cheapest`: no other model is at least as robust with fewer parameters, or with fewer FLOPs.
    """

    model: str
    parameters: int
    flops: int
    clean: float | None
    robust: float
    measured: bool
    smallest: bool
    cheapest: bool


class SizeFront(NamedTuple):
    """Robust accuracy under one attack and budget against parameters and FLOPs."""

    attack: str
    threat: str
    points: tuple[ModelPoint, ...]


def size_fronts(results: BenchmarkResult, numbers: Sequence[ComparedNumber]) -> tuple[SizeFront, ...]:
    """One front per budget, under the attack that most models have; of several such, the strongest."""
    runnable = {attack.label for attack in results.bench.attacks if not attack.published}
    usable = [number for number in numbers if number.attack in runnable and number.share is not None]
    fronts = []
    for threat in dict.fromkeys(number.threat for number in usable):
        under_threat = [number for number in usable if number.threat == threat]
        attacks = dict.fromkeys(number.attack for number in under_threat)
        attack = max(attacks, key=lambda name: _coverage_and_strength(under_threat, name))
        chosen = [number for number in under_threat if number.attack == attack]
        points = tuple(_points(results, numbers, chosen))
        if len(points) > 1:
            fronts.append(SizeFront(attack, threat, points))
    return tuple(fronts)


def _coverage_and_strength(numbers: Sequence[ComparedNumber], attack: str) -> tuple[int, float]:
    shares = {number.model: number.share or 0.0 for number in numbers if number.attack == attack}
    return len(shares), -sum(shares.values()) / len(shares)


@dataclass(frozen=True)
class _SizedModel:
    label: str
    figures: ModelFigures
    robust: float
    measured: bool


def _points(
    results: BenchmarkResult, numbers: Sequence[ComparedNumber], chosen: Sequence[ComparedNumber]
) -> Iterator[ModelPoint]:
    """Models of known size, the most robust first; several seeds count by their mean."""
    texts = {model.label: model.text for model in results.bench.models}
    clean = {number.model: number.share for number in numbers if number.attack == CLEAN}
    models: list[_SizedModel] = []
    for label in dict.fromkeys(number.model for number in chosen):
        entry = zoo_entries().get(texts.get(label, ""))
        figures = figures_of(entry) if entry else None
        seeds = [number for number in chosen if number.model == label]
        if figures is not None:
            robust = sum(number.share or 0.0 for number in seeds) / len(seeds)
            models.append(_SizedModel(label, figures, robust, all(number.measured for number in seeds)))
    for model in sorted(models, key=lambda model: -model.robust):
        figures = model.figures
        yield ModelPoint(
            model=model.label,
            parameters=figures.parameters,
            flops=figures.flops,
            clean=clean.get(model.label),
            robust=model.robust,
            measured=model.measured,
            smallest=_on_front(model, models, lambda other: other.figures.parameters),
            cheapest=_on_front(model, models, lambda other: other.figures.flops),
        )


def _on_front(model: _SizedModel, models: Sequence[_SizedModel], size: Callable[[_SizedModel], int]) -> bool:
    """Whether no other model is at least as good in robustness and size, and better in one of them."""
    return not any(
        other.robust >= model.robust
        and size(other) <= size(model)
        and (other.robust > model.robust or size(other) < size(model))
        for other in models
        if other.label != model.label
    )
