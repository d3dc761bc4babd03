"""Duration of a benchmark on 1, 8 and 64 devices: the costs of --plan, scheduled as the executors schedule tasks.

    python benchmarks/perf/scaling.py robustbench-imagenet --only '*/AA/*' --throughput 1e13
    python benchmarks/perf/scaling.py aas-table3-cifar10 aas-table3-cifar100 --throughput 1e13

Tasks start in the order of the file, each on the device that is free first. A shard is a run of whole batches, so that a
cell cannot be cut finer than its batches. Every task pays `--start` seconds for its model. Numbers are upper bounds, like
those of the plan: every image costs as much as one that is never fooled. `--survivors` counts fooled images as free
if the file has a published number.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
from collections.abc import Sequence
from pathlib import Path

from vitattack.attacks.auto.attack import BLOCK
from vitattack.bench.options import BenchOptions
from vitattack.bench.plan.cost import CellCost, plan_benchmark
from vitattack.bench.read.benchmark_file import read_benchmark


def tasks(rows: Sequence[CellCost], shards: int, start: float, survivors: bool) -> list[float]:
    """Hours of each task, in the order in which they start."""
    found = []
    for row in rows:
        hours = row.least_hours if survivors and row.least_hours is not None else row.hours
        if hours is None or not row.n:
            raise SystemExit(f"{row.cell.name}: no price")
        auto = row.cell.attack.partition("(")[0] == "auto"  # no shard cuts its blocks
        batches = math.ceil(row.n / (BLOCK if auto else row.cell.settings.batch_size))
        cuts = [batches * k // min(shards, batches) for k in range(min(shards, batches) + 1)]
        found += [hours * (b - a) / batches + start / 3600 for a, b in itertools.pairwise(cuts)]
    return found


def makespan(hours: Sequence[float], devices: int) -> float:
    """Hours until the last device is done."""
    free = [0.0] * devices
    for each in hours:
        heapq.heapreplace(free, free[0] + each)
    return max(free)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--only", action="append", default=[], help="cells by their names, as in vitattack bench")
    parser.add_argument("--throughput", type=float, default=1e13, help="FLOPs per second of one device")
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 8, 64, 512])
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 4, 16, 80])
    parser.add_argument("--start", type=float, default=30.0, help="seconds to start a task")
    parser.add_argument("--survivors", action="store_true")
    given = parser.parse_args()
    options = BenchOptions(only=tuple(given.only), store=Path("no such folder"))
    rows = [
        row for name in given.files for row in plan_benchmark(read_benchmark(name), options, given.throughput).to_run
    ]
    work = sum(tasks(rows, 1, 0.0, given.survivors))
    print(f"{len(rows)} cells, {sum(row.flops or 0 for row in rows):.3g} FLOPs at most, {work:.1f} device hours\n")
    print("| shards | tasks | longest task | " + " | ".join(f"{d} devices" for d in given.devices) + " |")
    print("| --: " * (3 + len(given.devices)) + "|")
    for shards in given.shards:
        hours = tasks(rows, shards, given.start, given.survivors)
        cells = []
        for devices in given.devices:
            span = makespan(hours, devices)
            cells.append(f"{span:.1f} h ({100 * work / devices / span:.0f} %)")
        print(f"| {shards} | {len(hours)} | {max(hours):.2f} h | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
