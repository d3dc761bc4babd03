"""What a benchmark would take: passes, FLOPs, bytes to fetch, hours. Runs nothing and imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from vitattack.bench.cells import Cell
from vitattack.bench.prices import Passes


@dataclass(frozen=True)
class Priced:
    """One cell with its price; None is what nobody recorded."""

    cell: Cell
    n: int | None  # images
    passes: Passes | None  # of one image, at most
    flops: float | None  # of the whole cell, at most; a backward counts as two forwards
    fetch: int | None  # bytes of weights that are not in the cache; on the first cell of a model alone
    hours: float | None
    stored: bool | None = None  # None: cannot be known without opening the model


@dataclass(frozen=True)
class Plan:
    title: str
    rows: tuple[Priced, ...]
    throughput: float | None  # FLOPs per second
    measured: str | None  # where the throughput comes from
