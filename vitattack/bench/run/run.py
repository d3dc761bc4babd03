"""A benchmark from start to table: what is stored is read, the rest is run, and one failure does not stop the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from vitattack.bench.cells import Cell, cells
from vitattack.bench.executors.base import Executor, Progress, Serial
from vitattack.bench.run import stored_cells
from vitattack.bench.run.tasks import Outcome, Status, Task
from vitattack.bench.schema import Bench
from vitattack.core.errors import UsageError
from vitattack.records.record import SampleRecord
from vitattack.records.stats import Accuracy


@dataclass(frozen=True)
class Measured:
    """A cell and what became of it; the numbers are those of its records."""

    cell: Cell
    status: Status
    folder: Path | None = None  # of the job, where there is a result
    from_store: bool = False
    error: str = ""
    trace: str = field(default="", repr=False)
    content: dict[str, Any] = field(default_factory=dict, repr=False)  # of result.json
    clean: Accuracy | None = None
    robust: Accuracy | None = None

    @property
    def n(self) -> int | None:
        return self.robust.n if self.robust else None

    def records(self) -> Iterator[SampleRecord]:
        """One after the other, since a matrix may have millions."""
        if self.folder is not None and self.status == "ok":
            yield from stored_cells.records(self.folder)


@dataclass(frozen=True)
class Matrix:
    """All cells of a benchmark in the order of its file."""

    bench: Bench
    cells: tuple[Measured, ...]
    store: Path
    interrupted: bool = False

    @cached_property
    def counts(self) -> Counter[Status]:
        return Counter(measured.status for measured in self.cells)

    @property
    def failed(self) -> tuple[Measured, ...]:
        return tuple(measured for measured in self.cells if measured.status == "failed")

    @property
    def exit_code(self) -> int:
        return 130 if self.interrupted else 1 if self.failed else 0


def run(
    bench: Bench,
    executor: Executor = Serial(),
    *,
    store: Path = Path("runs"),
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    data_dir: str | None = None,
    device: str = "auto",
    shards: int = 1,
    fresh: bool = False,
    progress: Progress = Progress(),
) -> Matrix:
    """Every cell of a benchmark, from the store or run now; an interrupt ends in the matrix as far as it got."""
    chosen = cells(bench, only, skip)
    settings: dict[str, Any] = {"data_dir": data_dir, "device": device, "shards": shards, "fresh": fresh}
    found, interrupted = run_cells(chosen, executor, store, **settings, progress=progress)
    return Matrix(bench, found, store, interrupted)


def run_cells(
    chosen: Sequence[Cell],
    executor: Executor,
    store: Path,
    *,
    data_dir: str | None = None,
    device: str = "auto",
    shards: int = 1,
    fresh: bool = False,
    progress: Progress = Progress(),
) -> tuple[tuple[Measured, ...], bool]:
    """What became of each cell, in their order, and whether an interrupt cut the run short."""
    if not 1 <= shards <= 4096:
        raise UsageError(f"{shards} shards are too few or too many: use 1 to 4096")
    notes = stored_cells.Index(store)
    marks = [stored_cells.fingerprint(cell, data_dir, device) if cell.runnable else None for cell in chosen]
    done: dict[int, Measured] = {}
    for number, (cell, mark) in enumerate(zip(chosen, marks, strict=True)):
        if not cell.runnable:
            done[number] = Measured(cell, "published")
        elif not fresh and (folder := notes.find(mark)) is not None:
            done[number] = _measured(cell, folder, from_store=True)
    missing = [number for number in range(len(chosen)) if number not in done]
    interrupted = False
    try:
        if missing:
            groups = _groups([chosen[number] for number in missing], store, data_dir, device, fresh)
            progress.begin([task for task, _ in groups], len(chosen) - len(missing))
            with closing(_outcomes(executor, [task for task, _ in groups], shards, progress)) as running:
                for at, outcome in running:
                    for number in (missing[place] for place in groups[at][1]):
                        done[number] = _ended(chosen[number], outcome, store)
                        if done[number].status == "ok" and outcome.folder is not None:
                            notes.note(marks[number], outcome.folder)
    except KeyboardInterrupt:
        interrupted = True
    everything = [done.get(number) or Measured(cell, "cancelled") for number, cell in enumerate(chosen)]
    return tuple(everything), interrupted


def _groups(
    chosen: Sequence[Cell], store: Path, data_dir: str | None, device: str, fresh: bool
) -> list[tuple[Task, list[int]]]:
    """The tasks of some cells, each with the places of the cells it is for: two spellings of a job are run once."""
    from vitattack.attacks import attack_text
    from vitattack.core.runtime import usable_cores
    from vitattack.evaluation.evaluate import with_perceptual

    found: dict[str, tuple[Task, list[int]]] = {}
    for place, cell in enumerate(chosen):
        attack = attack_text.canonical(cell.attack)
        if cell.settings.perceptual:
            attack = with_perceptual([attack])[0]
        threads = cell.settings.threads or usable_cores()
        task = Task(
            cell, attack, threads, str(store.absolute()), device=device, data_dir=_absolute(data_dir), fresh=fresh
        )
        same = repr(
            (cell.model, attack, cell.threat, cell.seed, cell.data, cell.settings, sorted(cell.options.items()))
        )
        found.setdefault(same, (task, []))[1].append(place)
    return list(found.values())


def _absolute(folder: str | None) -> str | None:
    return folder and str(Path(folder).absolute())


def _outcomes(
    executor: Executor, tasks: Sequence[Task], shards: int, progress: Progress
) -> Generator[tuple[int, Outcome]]:
    """One outcome for each task, by its number, when all of its shards have ended."""
    parts = [replace(task, shard=(number, shards)) for task in tasks for number in range(shards)]
    numbers = {id(part): at // shards for at, part in enumerate(parts)}
    ended: dict[int, list[Outcome]] = {number: [] for number in range(len(tasks))}
    unmerged: list[int] = []
    with closing(_told(executor.run(parts, progress), progress)) as running:
        for outcome in running:
            number = numbers[id(outcome.task)]
            ended[number].append(outcome)
            if len(ended[number]) == shards:
                if all(part.status == "part" for part in ended[number]):
                    unmerged.append(number)
                else:
                    yield number, _worst(ended[number])
    last = [replace(tasks[number], shard=(0, shards), fresh=False) for number in unmerged]
    numbers = {id(part): number for part, number in zip(last, unmerged, strict=True)}
    with closing(_told(executor.run(last, progress), progress)) as running:
        for outcome in running:
            yield numbers[id(outcome.task)], outcome


def _told(outcomes: Generator[Outcome], progress: Progress) -> Generator[Outcome]:
    with closing(outcomes):
        for outcome in outcomes:
            progress.ended(outcome)
            yield outcome


def _worst(outcomes: Sequence[Outcome]) -> Outcome:
    return next((each for status in ("failed", "ok") for each in outcomes if each.status == status), outcomes[0])


def _ended(cell: Cell, outcome: Outcome, store: Path) -> Measured:
    if outcome.status == "ok" and outcome.folder is not None:
        return _measured(cell, store / outcome.folder, from_store=outcome.from_store)
    error = outcome.error or "its records are not whole: run the same command again"
    return Measured(cell, "failed", error=error, trace=outcome.trace)


def _measured(cell: Cell, folder: Path, *, from_store: bool) -> Measured:
    content = stored_cells.result_in(folder)
    if content is None:
        return Measured(cell, "failed", error=f"the records in {folder} are not whole: run the same command again")
    n = content["n"]
    clean, robust = (Accuracy(n=n, **content[name]) for name in ("clean", "robust"))
    return Measured(cell, "ok", folder, from_store, content=content, clean=clean, robust=robust)
