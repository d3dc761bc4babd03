"""Results of a benchmark: each cell with its status and, once evaluated, its accuracies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from vitattack.bench.cells import Cell
from vitattack.bench.run import stored_cells
from vitattack.bench.schema import Benchmark
from vitattack.bench.tasks import CellStatus
from vitattack.records.record import SampleRecord
from vitattack.records.stats import Accuracy, Verdict
from vitattack.records.stored_result import last_records


@dataclass(frozen=True)
class CellResult:
    """A cell and its outcome; the numbers are computed from its records."""

    cell: Cell
    status: CellStatus
    folder: Path | None = None  # of the job, if there is a result
    from_store: bool = False
    error: str = ""
    trace: str = field(default="", repr=False)
    content: dict[str, Any] = field(default_factory=dict, repr=False)  # of result.json
    clean: Accuracy | None = None
    robust: Accuracy | None = None

    @cached_property
    def verdicts(self) -> Mapping[int, Verdict]:
        """Verdicts by sample, small enough to keep; empty without a finished job."""
        if self.folder is None or self.status != "ok":
            return {}
        return {record.index: Verdict.of(record) for record in last_records(self.folder)}

    @property
    def n(self) -> int | None:
        """Number of images."""
        return self.robust.n if self.robust else None

    def records(self) -> Iterator[SampleRecord]:
        """Records one by one: a benchmark may have millions."""
        if self.folder is not None and self.status == "ok":
            yield from last_records(self.folder)


def stored_result(cell: Cell, folder: Path, *, from_store: bool) -> CellResult:
    """The result of a cell whose job has ended in `folder`."""
    content = stored_cells.result_in(folder)
    if content is None:
        return CellResult(cell, "failed", error=f"the records in {folder} are not whole: run the same command again")
    n = content["n"]
    clean, robust = (Accuracy(n=n, **content[name]) for name in ("clean", "robust"))
    return CellResult(cell, "ok", folder, from_store, content=content, clean=clean, robust=robust)


@dataclass(frozen=True)
class BenchmarkResult:
    """All selected cells of a benchmark, in the order of its file."""

    bench: Benchmark
    cells: tuple[CellResult, ...]
    store: Path
    interrupted: bool = False

    @cached_property
    def counts(self) -> Counter[CellStatus]:
        """Number of cells by status."""
        return Counter(result.status for result in self.cells)

    @property
    def failed(self) -> tuple[CellResult, ...]:
        return tuple(result for result in self.cells if result.status == "failed")

    @property
    def exit_code(self) -> int:
        return 130 if self.interrupted else 1 if self.failed else 0
