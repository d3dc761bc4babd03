"""Options of one `vitattack bench`: every option of the command that concerns more than how results are shown."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vitattack.core.errors import UsageError
from vitattack.evaluation.setup import MAX_SHARDS


@dataclass(frozen=True)
class BenchOptions:
    """Selection of the cells, and where and how they are run."""

    only: tuple[str, ...] = ()  # wildcards over cells: see `Cell.matches`
    skip: tuple[str, ...] = ()
    store: Path = Path("runs")
    data_dir: str | None = None
    device: str = "auto"
    shards: int = 1  # parts that each cell is cut into
    fresh: bool = False  # run cells again even if they are stored
    unsafe_code: bool = False  # run code that the file names: of its models, and in programs and pickles

    def __post_init__(self) -> None:
        if not 1 <= self.shards <= MAX_SHARDS:
            raise UsageError(f"{self.shards} shards are too few or too many: use 1 to {MAX_SHARDS}")
