"""Published numbers on whole data sets, from the benchmark files and the zoo, which own them."""

from __future__ import annotations

from collections.abc import Sequence

from vitattack.analyses.run import Model
from vitattack.bench.read.benchmark_file import read_benchmark
from vitattack.bench.schema import CLEAN
from vitattack.core.table import Table
from vitattack.models.zoo.catalogue import zoo_entries


def published_table(title: str, benchmarks: Sequence[str]) -> Table:
    """The clean column of some benchmark files, a row for each model."""
    rows = []
    for name in benchmarks:
        benchmark = read_benchmark(name, check_attacks=False)
        rows += [
            (each.model, f"{each.value:.1f}", benchmark.source) for each in benchmark.reference if each.attack == CLEAN
        ]
    return Table(title, ("model", "%", "source"), rows)


def reported(model: Model, metric: str) -> str:
    """What the zoo's entry of a model reports, if it does."""
    entry = zoo_entries().get(model) if isinstance(model, str) else None
    found = [each for each in entry.reported if each.metric == metric] if entry else []
    return f"{found[0].value:.1f}" if found else ""


def reported_table(title: str, metric: str) -> Table:
    """What the zoo reports of a metric, a row for each model."""
    found = [(entry.id, each) for entry in zoo_entries().values() for each in entry.reported if each.metric == metric]
    return Table(title, ("model", "%", "source"), [(id_, f"{each.value:.1f}", each.source) for id_, each in found])
