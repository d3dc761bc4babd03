"""Run of a benchmark: stored cells are read, the others are run, and a failing cell does not stop the rest."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from vitattack.bench.cells import Cell, cells
from vitattack.bench.executors.executor import BenchProgress, Executor, SerialExecutor
from vitattack.bench.options import BenchOptions
from vitattack.bench.run.results import BenchmarkResult, CellResult, stored_result
from vitattack.bench.run.stored_cells import StoredCells
from vitattack.bench.schema import Benchmark
from vitattack.bench.tasks import Outcome, Task


def run_benchmark(
    bench: Benchmark,
    options: BenchOptions = BenchOptions(),
    executor: Executor = SerialExecutor(),
    progress: BenchProgress = BenchProgress(),
) -> BenchmarkResult:
    """Evaluate the selected cells, or read them from the store; an interrupt returns the cells done so far."""
    selected = cells(bench, options.only, options.skip)
    results, interrupted = run_cells(selected, options, executor, progress)
    return BenchmarkResult(bench, results, options.store, interrupted)


def missing_cells(bench: Benchmark, options: BenchOptions) -> tuple[Cell, ...]:
    """The selected cells that have to be run, as far as the store can tell without opening models."""
    stored = StoredCells(options)
    runnable = [cell for cell in cells(bench, options.only, options.skip) if cell.runnable]
    return tuple(cell for cell in runnable if options.fresh or stored.folder(stored.fingerprint(cell)) is None)


def run_cells(
    selected: Sequence[Cell],
    options: BenchOptions,
    executor: Executor,
    progress: BenchProgress = BenchProgress(),
) -> tuple[tuple[CellResult, ...], bool]:
    """Results in the order of the cells, and whether an interrupt cut the run short."""
    stored = StoredCells(options)
    marks = [stored.fingerprint(cell) if cell.runnable else None for cell in selected]
    results: dict[int, CellResult] = {}
    for number, (cell, mark) in enumerate(zip(selected, marks, strict=True)):
        if not cell.runnable:
            results[number] = CellResult(cell, "published")
        elif not options.fresh and (folder := stored.folder(mark)) is not None:
            results[number] = stored_result(cell, folder, from_store=True)
    missing = [number for number in range(len(selected)) if number not in results]
    interrupted = False
    try:
        if missing:
            groups = _group_by_job({number: selected[number] for number in missing}, options)
            progress.begin([group.task for group in groups], len(selected) - len(missing))
            tasks = [group.task for group in groups]
            with closing(_run_tasks(executor, tasks, options.shards, progress)) as outcomes:
                for at, outcome in outcomes:
                    for number in groups[at].cells:
                        results[number] = _result(selected[number], outcome, options.store)
                        if results[number].status == "ok" and outcome.folder is not None:
                            stored.note(selected[number], marks[number], outcome.folder)
    except KeyboardInterrupt:
        interrupted = True
    ordered = [results.get(number) or CellResult(cell, "cancelled") for number, cell in enumerate(selected)]
    return tuple(ordered), interrupted


@dataclass(frozen=True)
class _Group:
    """Cells that are the same job, such as two spellings of an attack: one task serves them all."""

    task: Task
    cells: list[int]  # by their numbers


def _group_by_job(missing: dict[int, Cell], options: BenchOptions) -> list[_Group]:
    from vitattack.attacks import attack_text
    from vitattack.core.runtime import usable_cores
    from vitattack.evaluation.evaluate import with_perceptual
    from vitattack.text.syntax import AttackSyntax

    groups: dict[str, _Group] = {}
    data_dir = options.data_dir and str(Path(options.data_dir).absolute())
    for number, cell in missing.items():
        syntax = AttackSyntax.of(cell.attack)
        attack = attack_text.canonical(with_perceptual(syntax) if cell.settings.perceptual else syntax)
        task = Task(
            cell,
            attack,
            threads=cell.settings.threads or usable_cores(),
            store=str(options.store.absolute()),
            device=options.device,
            data_dir=data_dir,
            fresh=options.fresh,
            unsafe_code=options.unsafe_code,
        )
        checkpoint = sorted(cell.options.items())
        job = repr((cell.model, attack, cell.threat, cell.seed, cell.data, cell.settings, checkpoint))
        groups.setdefault(job, _Group(task, [])).cells.append(number)
    return list(groups.values())


def _run_tasks(
    executor: Executor, tasks: Sequence[Task], shards: int, progress: BenchProgress
) -> Generator[tuple[int, Outcome]]:
    """One outcome per task, with the task's number, once all of its shards have ended."""
    parts = [replace(task, shard=(number, shards)) for task in tasks for number in range(shards)]
    numbers = {id(part): at // shards for at, part in enumerate(parts)}
    ended: dict[int, list[Outcome]] = {number: [] for number in range(len(tasks))}
    unmerged: list[int] = []
    with closing(_reported(executor.run(parts, progress), progress)) as outcomes:
        for outcome in outcomes:
            number = numbers[id(outcome.task)]
            ended[number].append(outcome)
            if len(ended[number]) == shards:
                if all(part.status == "part" for part in ended[number]):
                    unmerged.append(number)
                else:
                    yield number, _deciding(ended[number])
    # the last shard of a job merges; where none saw all the others complete, one more task does
    merging = [replace(tasks[number], shard=(0, shards), fresh=False) for number in unmerged]
    numbers = {id(task): number for task, number in zip(merging, unmerged, strict=True)}
    with closing(_reported(executor.run(merging, progress), progress)) as outcomes:
        for outcome in outcomes:
            yield numbers[id(outcome.task)], outcome


def _reported(outcomes: Generator[Outcome], progress: BenchProgress) -> Generator[Outcome]:
    with closing(outcomes):
        for outcome in outcomes:
            progress.ended(outcome)
            yield outcome


def _deciding(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome that decides over a task: a failed shard, else the one that merged."""
    return next((each for status in ("failed", "ok") for each in outcomes if each.status == status), outcomes[0])


def _result(cell: Cell, outcome: Outcome, store: Path) -> CellResult:
    if outcome.status == "ok" and outcome.folder is not None:
        return stored_result(cell, store / outcome.folder, from_store=outcome.from_store)
    error = outcome.error or "its records are not whole: run the same command again"
    return CellResult(cell, "failed", error=error, trace=outcome.trace)
