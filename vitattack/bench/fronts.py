"""Models on the front of robustness against size: only differences that sampling does not explain make one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from vitattack.bench.compare import ComparedNumber
from vitattack.bench.run.results import BenchmarkResult
from vitattack.bench.schema import CLEAN, WORST_CASE
from vitattack.models.zoo.catalogue import zoo_entries
from vitattack.models.zoo.figures import figures_of
from vitattack.records import stats
from vitattack.records.stats import Accuracy

SIGNIFICANT = 0.05


class ModelPoint(NamedTuple):
    """A model on the plot of robustness against size.

    `smallest` and `cheapest`: it is shown to be more robust than every model with fewer parameters, or fewer FLOPs,
    and not to be less robust than one with as many.
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
    """Robust accuracy under the attacks that most models have, and one budget, against parameters and FLOPs."""

    attack: str
    threat: str
    points: tuple[ModelPoint, ...]
    left_out: tuple[str, ...] = ()  # models with a number whose size is unknown, or that lack one of the attacks


class _Size(NamedTuple):
    parameters: int
    flops: int


@dataclass(frozen=True)
class _SizedModel:
    label: str
    size: _Size
    accuracy: Accuracy
    measured: bool
    verdicts: Mapping[int, bool] = field(repr=False)  # by sample, whether no attack and no seed fooled it; {} unknown


def size_fronts(results: BenchmarkResult, numbers: Sequence[ComparedNumber]) -> tuple[SizeFront, ...]:
    """One front per budget, by the worst case over the attacks that most models have; without records the strongest."""
    runnable = {attack.label for attack in results.bench.attacks if not attack.published}
    usable = [number for number in numbers if number.attack in runnable and number.share is not None]
    clean = {number.model: number.share for number in numbers if number.attack == CLEAN}
    sizes = _sizes(results)
    fronts = []
    for threat in dict.fromkeys(number.threat for number in usable):
        under_threat = [number for number in usable if number.threat == threat]
        sized = [number for number in under_threat if number.model in sizes]
        attacks, labels = _attacks_of_most(sized)
        if len(labels) < 2:
            continue
        chosen = [number for number in sized if number.attack in attacks and number.model in labels]
        attacks = attacks if all(number.result.verdicts for number in chosen) else _strongest(chosen)
        chosen = [number for number in chosen if number.attack in attacks]
        models = [_sized_model(label, sizes[label], [n for n in chosen if n.model == label]) for label in labels]
        title = f"{WORST_CASE} of {', '.join(attacks)}" if len(attacks) > 1 else attacks[0]
        others = dict.fromkeys(number.model for number in under_threat if number.model not in labels)
        fronts.append(SizeFront(title, threat, _points(models, clean), tuple(others)))
    return tuple(fronts)


def _attacks_of_most(numbers: Sequence[ComparedNumber]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The models that share an attack, as many as possible, and all attacks that these models have."""
    models = {
        attack: {number.model for number in numbers if number.attack == attack}
        for attack in dict.fromkeys(number.attack for number in numbers)
    }
    most = max(models.values(), key=len, default=set())
    attacks = tuple(attack for attack, having in models.items() if having >= most)
    return attacks, tuple(dict.fromkeys(number.model for number in numbers if number.model in most))


def _strongest(numbers: Sequence[ComparedNumber]) -> tuple[str, ...]:
    """The attack with the lowest mean, or all that share it."""
    shares: dict[str, list[float]] = {}
    for number in numbers:
        shares.setdefault(number.attack, []).append(number.share or 0.0)
    means = {attack: sum(values) / len(values) for attack, values in shares.items()}
    return tuple(attack for attack, mean in means.items() if mean <= min(means.values()) + 1e-12)


def _sized_model(label: str, size: _Size, numbers: Sequence[ComparedNumber]) -> _SizedModel:
    measured = all(number.measured for number in numbers)
    runs = [number.result.verdicts for number in numbers]
    if all(runs):
        robust = {index: all(run[index].robust for run in runs) for index in runs[0] if all(index in r for r in runs)}
        return _SizedModel(label, size, stats.worst_case(runs), measured, robust)
    weakest = min(numbers, key=lambda number: number.share or 0.0)
    return _SizedModel(label, size, _accuracy(weakest), measured, {})


def _accuracy(number: ComparedNumber) -> Accuracy:
    """As measured, or as published; a number without its count is taken for exact."""
    if number.measured is not None:
        return number.measured
    assert number.published is not None
    value, n = number.published.value / 100, number.published.n
    return Accuracy(value, value, value, 0, 0) if n is None else stats.share(round(value * n), n)


def _sizes(results: BenchmarkResult) -> dict[str, _Size]:
    """Sizes of models by label: as recorded for the zoo, else as counted when the model was run."""
    sizes: dict[str, _Size] = {}
    for model in results.bench.models:
        entry = zoo_entries().get(str(model.options.get("like") or model.text))
        figures = figures_of(entry) if entry else None
        if figures is not None:
            sizes[model.label] = _Size(figures.parameters, figures.flops)
    for result in results.cells:
        counted = result.content.get("model") or {}
        parameters, flops = counted.get("parameters"), counted.get("flops")
        if isinstance(parameters, int) and isinstance(flops, int):
            sizes.setdefault(result.cell.label, _Size(parameters, flops))
    return sizes


def _points(models: Sequence[_SizedModel], clean: Mapping[str, float | None]) -> tuple[ModelPoint, ...]:
    """The most robust model first."""
    return tuple(
        ModelPoint(
            model=model.label,
            parameters=model.size.parameters,
            flops=model.size.flops,
            clean=clean.get(model.label),
            robust=model.accuracy.accuracy,
            measured=model.measured,
            smallest=_on_front(model, models, lambda other: other.size.parameters),
            cheapest=_on_front(model, models, lambda other: other.size.flops),
        )
        for model in sorted(models, key=lambda model: -model.accuracy.accuracy)
    )


def _on_front(model: _SizedModel, models: Sequence[_SizedModel], size: Callable[[_SizedModel], int]) -> bool:
    for other in models:
        if size(other) < size(model) and not _beats(model, other):
            return False
        if size(other) == size(model) and _beats(other, model):
            return False
    return True


def _beats(one: _SizedModel, other: _SizedModel) -> bool:
    """Whether one model is shown to be more robust: by a paired test where the samples are known."""
    if one.verdicts and other.verdicts:
        paired = stats.paired_test(one.verdicts, other.verdicts)
        return paired.only_first > paired.only_second and paired.p_value < SIGNIFICANT
    n = other.accuracy.n or None
    return stats.gap(one.accuracy, other.accuracy.accuracy, n).low > 0
