"""A benchmark of two attacks on one model, and its plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitattack.bench.options import BenchOptions
from vitattack.bench.plan.cost import Plan, plan_benchmark
from vitattack.bench.read.benchmark_file import read_benchmark
from vitattack.bench.schema import Benchmark

TEXT = """\
schema: 1
title: A plan
source: us
data: cifar10-demo[:8]
threats: [linf:8/255]
models: [tiny-vit, {label: theirs, published: true}]
attacks: [pgd, "transfer('tiny-cnn-standard', pgd(stop=never))"]
reference:
  - {model: tiny-vit, attack: pgd, value: 25, n: 100}
"""


def bench(folder: Path, text: str = TEXT) -> Benchmark:
    path = folder / "b.yaml"
    path.write_text(text)
    return read_benchmark(str(path))


def plan(some: Benchmark, *, throughput: float | None = None, **options: Any) -> Plan:
    return plan_benchmark(some, BenchOptions(**{"store": Path("no store"), **options}), throughput)
