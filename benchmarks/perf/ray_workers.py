"""Speed-up of two Ray workers over one process, one thread each, on eight jobs with the same records.

    python benchmarks/perf/ray_workers.py [--rounds 1] [--images 300] [--workers 2] [--model tiny-vit] [--attack gama]

The jobs differ in their seed, so they cost about the same. Ray's time includes everything: starting it, workers that import
torch and load the model, and records that stream back; the serial time begins with torch imported. Target: 1.8x on two cores,
which needs both of them idle and jobs that last longer than Ray takes to start. For a smoke run, give --images 8.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import torch
from measure import arguments, conditions, median

from vitattack.bench.cells import Cell
from vitattack.bench.executors.executor import BenchProgress, Executor, SerialExecutor
from vitattack.bench.executors.ray_cluster import RayExecutor
from vitattack.bench.options import BenchOptions
from vitattack.bench.run.run_benchmark import run_cells
from vitattack.bench.schema import CellSettings
from vitattack.bench.tasks import Task

JOBS = 8


class FirstBatch(BenchProgress):
    """Time of the first stored batch."""

    def __init__(self) -> None:
        self.at: float | None = None

    def moved(self, task: Task, done: int, total: int) -> None:
        if done and self.at is None:
            self.at = time.perf_counter()


def cells(model: str, attack: str, images: int, threads: int) -> tuple[Cell, ...]:
    return tuple(
        Cell(
            model=model,
            label=model,
            attack=attack,
            attack_label=attack,
            threat="linf:8/255",
            seed=seed,
            data=f"cifar10-demo[:{images}]",
            settings=CellSettings(batch_size=50, threads=threads),
        )
        for seed in range(JOBS)
    )


def timed(executor: Executor, batch: tuple[Cell, ...]) -> tuple[float, float, list[bytes]]:
    """Total seconds, seconds until the first batch, and all records sorted."""
    with tempfile.TemporaryDirectory() as store:
        first = FirstBatch()
        began = time.perf_counter()
        results, _ = run_cells(batch, BenchOptions(store=Path(store), device="cpu"), executor, first)
        seconds = time.perf_counter() - began
        assert all(result.status == "ok" for result in results), [result.error for result in results]
        folders = [result.folder for result in results if result.folder is not None]
        lines = [line for folder in folders for line in (folder / "samples.jsonl").read_bytes().splitlines()]
        return seconds, (first.at or began) - began, sorted(lines)


def main() -> None:
    parser = arguments(__doc__, rounds=1)
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--model", default="tiny-vit")
    parser.add_argument("--attack", default="gama")
    args: argparse.Namespace = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    torch.set_num_threads(args.threads)
    print(conditions(args.threads))
    batch = cells(args.model, args.attack, args.images, args.threads)
    print(f"{JOBS} jobs: {args.model}, {args.attack}, {args.images} images, {args.workers} Ray workers")
    ratios = []
    for _ in range(args.rounds):
        alone, _, expected = timed(SerialExecutor(), batch)
        together, started, records = timed(RayExecutor(jobs=args.workers), batch)
        assert records == expected, "the records differ"
        ratios.append(alone / together)
        print(f"serial: {alone:.1f} s")
        print(f"   Ray: {together:.1f} s, its first batch after {started:.1f} s")
    print(f"records byte-identical: True ({len(expected)})")
    print(f"ratio {median(ratios):.2f}x (rounds: {', '.join(f'{ratio:.2f}' for ratio in sorted(ratios))})")


if __name__ == "__main__":
    main()
