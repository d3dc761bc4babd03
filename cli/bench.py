"""`vitattack bench`: list, plan or run benchmarks."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import combined, option, output_options, store_options
from .suggestions import benchmarks
from .terminal import say

if TYPE_CHECKING:
    from vitattack.bench.executors.executor import Executor
    from vitattack.bench.options import BenchOptions
    from vitattack.bench.run.results import BenchmarkResult
    from vitattack.bench.schema import Benchmark

RAY_OPTIONS = ("address", "num_cpus", "num_gpus", "shared_store")


@click.command(
    "bench",
    epilog="""\b
Examples:
  vitattack bench                                  list the shipped benchmarks
  vitattack bench demo                             on the embedded models, minutes on a laptop
  vitattack bench my.yaml --plan                   hours on this machine, which is measured once, in seconds
  vitattack bench robustbench-imagenet --plan --throughput 20T
  vitattack bench my.yaml --only 'tiny-*' --skip autoattack --jobs 2
  vitattack bench my.yaml --executor ray --address auto
  vitattack bench my.yaml --save results           Markdown, LaTeX, CSV, JSON and all records as parquet
\b
FILE is a YAML file, or NAME for benchmarks/NAME.yaml; docs/bench.md describes its keys. Everything is checked before the
first forward. Stored cells are not run again: the same command resumes after a failure or an interrupt.
Exit codes: 0 all done, 1 some cells failed, 2 the file or an option is wrong, 130 interrupted.
""",
)
@click.argument("file", required=False, shell_complete=benchmarks)
@option("--plan", "only_plan", is_flag=True, help="Print what the cells would cost, and run nothing.")
@option("--calibrate", is_flag=True, help="With --plan: measure every model anew, and not one alone.")
@option("--throughput", metavar="FLOPS", help="With --plan: assumed FLOPs per second, such as 20T or 300G.")
@option(
    "--only", multiple=True, metavar="PATTERN", help="Only matching cells: MODEL/ATTACK/THREAT/SEED or a part, with *."
)
@option("--skip", multiple=True, metavar="PATTERN", help="Leave out matching cells.")
@option("--executor", type=click.Choice(("local", "ray")), default="local", help="Where cells run.")
@option(
    "--jobs",
    type=click.IntRange(1, 1024),
    help="Cells at a time, or Ray workers; default: one per GPU, on CPUs one that as many processes share as suit it.",
)
@option("--address", metavar="auto|ray://...", help="An existing Ray cluster; default: a new one on this machine.")
@option("--num-cpus", type=click.FloatRange(0, 1024), help="CPUs of a Ray task; default: its threads.")
@option("--num-gpus", type=click.FloatRange(0, 64), help="GPUs of a Ray task; default: one if the cluster has any.")
@option(
    "--shared-store", is_flag=True, help="Ray workers write the records; needs --out at the same path on all of them."
)
@option(
    "--shards", type=click.IntRange(1, 4096), default=1, help="Split every cell into N parts that may run side by side."
)
@option("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps.")
@option("--data-dir", type=click.Path(file_okay=False), help="Folder with the data sets' files.")
@option("--save", metavar="DIR", type=click.Path(file_okay=False), help="Also write the results there, in every form.")
@click.option(  # no environment variable: it must be given each time
    "--unsafe-code", is_flag=True, help="Run code that FILE names for its models; only if you trust its author."
)
@option("--no-intervals", is_flag=True, help="Leave the 95 % intervals out of the table.")
@combined(store_options, output_options)
def command(
    file: str | None,
    only_plan: bool,
    calibrate: bool,
    throughput: str | None,
    save: str | None,
    no_intervals: bool,
    as_json: bool,
    form: str,
    quiet: bool,
    **given: Any,
) -> None:
    """Run the models, attacks, threats and seeds of FILE, and compare them with published numbers."""
    from vitattack.bench.read.benchmark_file import read_benchmark

    form = "json" if as_json else form
    _check_combination(only_plan, calibrate, throughput, save)
    if file is None:
        _list(form)
        return
    bench = read_benchmark(file, check_attacks=False)  # which imports torch, and stored results need none
    if only_plan:
        _plan(bench, _bench_options(given), calibrate, throughput, form, quiet)
        return
    executor = _executor(given)
    if save is not None:
        _check_folder(Path(save))  # now, rather than after hours
    results = _run(bench, _bench_options(given), executor, quiet, local=given["executor"] == "local")
    _show(results, form, save, intervals=not no_intervals)
    if results.interrupted:
        say("vitattack: interrupted: finished batches are stored; run the same command to resume")
    click.get_current_context().exit(results.exit_code)


def _check_combination(only_plan: bool, calibrate: bool, throughput: str | None, save: str | None) -> None:
    if not only_plan and (calibrate or throughput):
        raise click.UsageError("--calibrate and --throughput are for prices: add --plan")
    if calibrate and throughput:
        raise click.UsageError("--calibrate measures what --throughput states: give one")
    if only_plan and save is not None:
        raise click.UsageError("--save is for results: drop it, or write the plan with --plan --json > FILE")


def _bench_options(given: dict[str, Any]) -> BenchOptions:
    """The options of the command that `BenchOptions` has a field for."""
    from dataclasses import fields

    from vitattack.bench.options import BenchOptions

    values = {**given, "store": Path(given["out"])}
    return BenchOptions(**{field.name: values[field.name] for field in fields(BenchOptions)})


def _check_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise click.UsageError(f"cannot write to --save '{folder}' ({error.strerror}): name another folder") from error


def _list(form: str) -> None:
    from vitattack.bench.read.benchmark_file import read_benchmark, shipped_benchmarks
    from vitattack.core.table import Table

    from .output import show

    benches = [read_benchmark(name, check_attacks=False) for name in shipped_benchmarks()]
    rows = [(bench.name, len(bench.models), len(bench.attacks), bench.data, bench.title) for bench in benches]
    texts = [(bench.name, bench.title) for bench in benches]
    table = Table("benchmarks", ("name", "what it is"), texts, left=2, line_each=True, whole=True)
    keys = ("name", "models", "attacks", "data", "title")
    show(table, {"schema": 1, "benchmarks": [dict(zip(keys, row, strict=True)) for row in rows]}, form)


def _plan(
    bench: Benchmark, options: BenchOptions, calibrate: bool, throughput: str | None, form: str, quiet: bool
) -> None:
    from vitattack.bench.cells import cells
    from vitattack.bench.plan import throughput as measuring
    from vitattack.bench.plan.cost import plan_benchmark
    from vitattack.bench.read.attack_columns import check_attack_options
    from vitattack.report.bench_plan import format_flops, plan_table

    from .output import show

    stated = measuring.parse_flops(throughput) if throughput else None
    check_attack_options(bench)
    if stated is None:
        measured = measuring.calibrate if calibrate else measuring.measure_one
        for name, rate in measured(cells(bench, options.only, options.skip), options.device):
            if not quiet:
                say(f"{name}: {format_flops(rate)} FLOPs per second, measured now and remembered")
    plan = plan_benchmark(bench, options, stated)
    show(plan_table(plan), plan.json(), form)


def _executor(given: dict[str, Any]) -> Executor:
    jobs = given["jobs"]
    if given["executor"] == "ray":
        from vitattack.bench.executors.ray_cluster import RayExecutor

        return RayExecutor(
            given["address"],
            jobs,
            cpus=given["num_cpus"],
            gpus=given["num_gpus"],
            writers="workers" if given["shared_store"] else "driver",
        )
    for_ray = next((key for key in RAY_OPTIONS if given[key] not in (None, False)), None)
    if for_ray:
        raise click.UsageError(f"--{for_ray.replace('_', '-')} is for Ray: add --executor ray")
    if jobs == 1:
        from vitattack.bench.executors.executor import SerialExecutor

        return SerialExecutor()
    from vitattack.bench.executors.processes import MachineExecutor, ProcessExecutor

    return MachineExecutor() if jobs is None else ProcessExecutor(jobs)


def _run(bench: Benchmark, options: BenchOptions, executor: Executor, quiet: bool, *, local: bool) -> BenchmarkResult:
    from vitattack.bench.run.run_benchmark import missing_cells, run_benchmark

    from .progress.bench_progress import BenchScreen

    missing = missing_cells(bench, options)
    if missing:
        from vitattack.bench.plan.preflight import check_run
        from vitattack.bench.read.attack_columns import check_attack_options

        from .signals import catch_sigterm

        if local:  # only its workers see the devices of a cluster
            from vitattack.core.runtime import resolve_device

            resolve_device(options.device)
        check_attack_options(bench)
        check_run(bench, missing, options)
        catch_sigterm()
    with BenchScreen(quiet) as progress:
        return run_benchmark(bench, options, executor, progress)


def _show(results: BenchmarkResult, form: str, save: str | None, *, intervals: bool) -> None:
    from vitattack.report.bench_files import bench_json, number_table, save_bench
    from vitattack.report.bench_tables import bench_tables

    from .output import show, terminal_width

    if save is not None:
        for path in save_bench(results, Path(save), intervals=intervals):
            say(f"written: {path}")
    if form == "csv":
        show(number_table(results), {}, form)
        return
    width = terminal_width() if form == "table" else None
    show(bench_tables(results, width, intervals=intervals), bench_json(results), form)
