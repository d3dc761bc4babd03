"""`vitattack bench FILE.yaml`."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import option, output_options, store_options, together

if TYPE_CHECKING:
    from vitattack.bench.cells import Cell
    from vitattack.bench.executors.base import Executor
    from vitattack.bench.run.run import Matrix
    from vitattack.bench.schema import Bench


@click.command(
    "bench",
    epilog="""\b
Examples:
  vitattack bench                                  the benchmarks there are
  vitattack bench demo                             the embedded models, minutes on a laptop
  vitattack bench robustbench-imagenet --plan --throughput 20T
  vitattack bench my.yaml --plan --calibrate       hours on this machine
  vitattack bench my.yaml --only 'tiny-*' --skip autoattack --jobs 2
  vitattack bench my.yaml --executor ray --address auto
  vitattack bench my.yaml --save results           Markdown, LaTeX, CSV, JSON and all records as parquet
\b
FILE is a YAML file, or NAME for benchmarks/NAME.yaml; docs/bench.md describes its keys. Everything is checked before the
first forward. Cells that are stored are not run again: after a failure or an interrupt the same command goes on.
Exit codes: 0 all done, 1 some cells failed, 2 the file or an option is wrong, 130 interrupted.
""",
)
@click.argument("file", required=False)
@option("--plan", "only_plan", is_flag=True, help="Print what the cells would take, and run nothing.")
@option("--calibrate", is_flag=True, help="With --plan: measure this machine on every model first, and remember it.")
@option("--throughput", metavar="FLOPS", help="With --plan: FLOPs per second to count with, such as 20T or 300G.")
@option(
    "--only", multiple=True, metavar="PATTERN", help="Only cells that fit: MODEL/ATTACK/THREAT/SEED or a part, with *."
)
@option("--skip", multiple=True, metavar="PATTERN", help="All cells but those that fit.")
@option("--executor", type=click.Choice(("local", "ray")), default="local", help="Who runs the cells.")
@option("--jobs", type=click.IntRange(1, 1024), help="Processes on this machine, or Ray workers; default: one.")
@option("--address", metavar="auto|ray://...", help="A Ray cluster that is there; default: one of this machine alone.")
@option("--num-cpus", type=click.FloatRange(0, 1024), help="CPUs of a Ray task; default: its threads.")
@option("--num-gpus", type=click.FloatRange(0, 64), help="GPUs of a Ray task; default: one where there are any.")
@option("--shared-store", is_flag=True, help="Ray workers write the records: all of them see --out at the same path.")
@option("--shards", type=click.IntRange(1, 4096), default=1, help="Cut every cell into N parts that run side by side.")
@option("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps.")
@option("--data-dir", type=click.Path(file_okay=False), help="Folder that holds the data sets' files.")
@option("--save", metavar="DIR", type=click.Path(file_okay=False), help="Also write every form of the result there.")
@together(store_options, output_options)
def command(
    file: str | None,
    only_plan: bool,
    calibrate: bool,
    throughput: str | None,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    save: str | None,
    out: str,
    data_dir: str | None,
    device: str,
    as_json: bool,
    form: str,
    quiet: bool,
    **given: Any,
) -> None:
    """Run a matrix of models, attacks, threats and seeds from FILE, beside the numbers others published."""
    from vitattack.bench.schema import read

    form = "json" if as_json else form
    if not only_plan and (calibrate or throughput):
        raise click.UsageError("--calibrate and --throughput are for prices: add --plan")
    if calibrate and throughput:
        raise click.UsageError("--calibrate measures what --throughput states: give one")
    if only_plan and save is not None:
        raise click.UsageError("--save is for results: drop it, or write the plan with --plan --json > FILE")
    if file is None:
        _list(form)
        return
    bench = read(file)
    if only_plan:
        _plan(bench, only, skip, calibrate, throughput, Path(out), data_dir, device, given["fresh"], form, quiet)
        return
    executor = _executor(given)
    if save is not None:
        _check_folder(Path(save))  # not after hours
    matrix = _run(bench, executor, only, skip, Path(out), data_dir, device, given, quiet)
    _show(matrix, form, save)
    if matrix.interrupted:
        click.echo("vitattack: interrupted: finished batches are stored; run the same command to go on", err=True)
    click.get_current_context().exit(matrix.exit_code)


def _check_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise click.UsageError(f"cannot write to --save '{folder}' ({error.strerror}): name another folder") from error


def _list(form: str) -> None:
    from vitattack.bench.schema import read, shipped
    from vitattack.core.table import Table

    from .output import show

    found = [read(name) for name in shipped()]
    rows = [(bench.name, len(bench.models), len(bench.attacks), bench.data, bench.title) for bench in found]
    texts = [tuple(map(str, row)) for row in rows]
    table = Table("benchmarks", ("name", "models", "attacks", "data", "what"), texts, left=1, whole=True)
    keys = ("name", "models", "attacks", "data", "title")
    show(table, {"schema": 1, "benchmarks": [dict(zip(keys, row, strict=True)) for row in rows]}, form)


def _plan(
    bench: Bench,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    calibrate: bool,
    throughput: str | None,
    store: Path,
    data_dir: str | None,
    device: str,
    fresh: bool,
    form: str,
    quiet: bool,
) -> None:
    from vitattack.bench.cells import cells
    from vitattack.bench.plan import throughput as rates
    from vitattack.bench.plan.plan import plan
    from vitattack.report.plan import flops, table

    from .output import show

    stated = rates.parse(throughput) if throughput else None
    if calibrate:
        for name, rate in rates.calibrate(cells(bench, only, skip), device):
            if not quiet:
                click.echo(f"{name}: {flops(rate)} FLOPs per second", err=True)
    found = plan(
        bench, only=only, skip=skip, throughput=stated, store=store, data_dir=data_dir, device=device, fresh=fresh
    )
    show(table(found), found.json(), form)


def _executor(given: dict[str, Any]) -> Executor:
    jobs, address = given["jobs"], given["address"]
    of_ray = ("address", "num_cpus", "num_gpus", "shared_store")
    if given["executor"] == "ray":
        from vitattack.bench.executors.ray_cluster import OnRay

        shared = given["shared_store"]
        return OnRay(address, jobs, given["num_cpus"], given["num_gpus"], "workers" if shared else "driver")
    asked = next((key for key in of_ray if given[key] not in (None, False)), None)
    if asked:
        raise click.UsageError(f"--{asked.replace('_', '-')} is for Ray: add --executor ray")
    if jobs is None or jobs == 1:
        from vitattack.bench.executors.base import Serial

        return Serial()
    from vitattack.bench.executors.processes import Processes

    return Processes(jobs)


def _run(
    bench: Bench,
    executor: Executor,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    store: Path,
    data_dir: str | None,
    device: str,
    given: dict[str, Any],
    quiet: bool,
) -> Matrix:
    from vitattack.bench.run.run import run

    from .benching import Board

    missing = _missing(bench, only, skip, store, data_dir, device, given["fresh"])
    if missing:
        from vitattack.bench.plan.preflight import check

        from .signals import catch_sigterm

        if given["executor"] == "local":  # the devices of a cluster are seen by its workers
            from vitattack.core.runtime import resolve_device

            resolve_device(device)
        check(bench, missing, store=store, data_dir=data_dir)
        catch_sigterm()
    with Board(quiet) as board:
        return run(
            bench,
            executor,
            store=store,
            only=only,
            skip=skip,
            data_dir=data_dir,
            device=device,
            shards=given["shards"],
            fresh=given["fresh"],
            progress=board,
        )


def _missing(
    bench: Bench,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    store: Path,
    data_dir: str | None,
    device: str,
    fresh: bool,
) -> tuple[Cell, ...]:
    """The cells that are not known to be stored."""
    from vitattack.bench.cells import cells
    from vitattack.bench.run import stored_cells

    notes = stored_cells.Index(store)
    runnable = [cell for cell in cells(bench, only, skip) if cell.runnable]
    return tuple(
        cell for cell in runnable if fresh or notes.find(stored_cells.fingerprint(cell, data_dir, device)) is None
    )


def _show(matrix: Matrix, form: str, save: str | None) -> None:
    from vitattack.report import bench as report

    from .output import show, terminal_width

    if save is not None:
        for path in report.save(matrix, Path(save)):
            click.echo(f"written: {path}", err=True)
    if form == "csv":
        click.echo(report.numbers(matrix).csv(), nl=False)
        return
    show(report.tables(matrix, terminal_width() if form == "table" else None), report.content(matrix), form)
