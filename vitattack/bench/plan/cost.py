"""Cost of a benchmark: passes, FLOPs, bytes to fetch and hours of each cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from vitattack.attacks.price import PassesPerImage, Price, PriceQuery, of_one_image
from vitattack.bench.cells import Cell, cells
from vitattack.bench.options import BenchOptions
from vitattack.bench.plan.sizes import entry_of, sized_model
from vitattack.bench.plan.throughput import MeasuredRates, Rate
from vitattack.bench.read.unopened_data import UnopenedData, look_up_data
from vitattack.bench.run.stored_cells import StoredCells
from vitattack.bench.schema import Benchmark
from vitattack.core.errors import UsageError
from vitattack.core.words import names_a_file
from vitattack.models.weights.cache import weights_location
from vitattack.models.zoo.catalogue import zoo_entries
from vitattack.models.zoo.figures import ModelFigures, figures_of
from vitattack.threats.base import parse_threat

DEFAULT_CLASSES = 1000  # if neither model nor data tell how many there are


@dataclass(frozen=True)
class CellCost:
    """Cost of one cell; None stands for an unknown figure."""

    cell: Cell
    n: int | None  # images, at most
    passes: PassesPerImage | None = None  # through the victim, for an image that the attack does not fool
    flops: float | None = None  # of the whole cell if no image is fooled
    least_flops: float | None = None  # if the published accuracy holds and fooled images cost only their clean forward
    fetch: int | None = None  # bytes of weights to fetch, counted at the first cell that runs a model
    rate: Rate | None = None
    stored: bool = False

    @property
    def hours(self) -> float | None:
        """Hours if no image is fooled."""
        return self._hours(self.flops)

    @property
    def least_hours(self) -> float | None:
        """Hours if the published accuracy holds."""
        return self._hours(self.least_flops)

    def _hours(self, flops: float | None) -> float | None:
        return flops / self.rate.flops_per_second / 3600 if flops is not None and self.rate else None

    @property
    def to_run(self) -> bool:
        return self.cell.runnable and not self.stored

    def json(self) -> dict[str, Any]:
        return {
            "model": self.cell.label,
            "attack": self.cell.attack_label,
            "threat": self.cell.threat,
            "seed": self.cell.seed,
            "state": "published" if not self.cell.runnable else "stored" if self.stored else "to run",
            "n": self.n,
            "forwards": self.passes.forwards if self.passes else None,
            "backwards": self.passes.backwards if self.passes else None,
            "flops": self.flops,
            "least_flops": self.least_flops,
            "fetch": self.fetch,
            "hours": self.hours,
            "least_hours": self.least_hours,
            "rate": self.rate.json() if self.rate else None,
        }


Figure = Callable[[CellCost], float | None]


@dataclass(frozen=True)
class Plan:
    """Costs of the selected cells of a benchmark."""

    bench: Benchmark
    rows: tuple[CellCost, ...]
    notes: tuple[str, ...] = ()

    @cached_property
    def to_run(self) -> tuple[CellCost, ...]:
        return tuple(row for row in self.rows if row.to_run)

    def total(self, figure: Figure) -> float | None:
        """Sum over the cells to run with a known figure; None if there is none."""
        known = [value for row in self.to_run if (value := figure(row)) is not None]
        return sum(known) if known else None

    def unknown(self, figure: Callable[[CellCost], object]) -> int:
        """Number of cells to run whose figure is unknown."""
        return sum(figure(row) is None for row in self.to_run)

    def json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "file": self.bench.path,
            "title": self.bench.title,
            "cells": [row.json() for row in self.rows],
            "to_run": len(self.to_run),
            "flops": self.total(lambda row: row.flops),
            "least": self.total(lambda row: row.least_flops),
            "fetch": self.total(lambda row: row.fetch),
            "hours": self.total(lambda row: row.hours),
            "least_hours": self.total(lambda row: row.least_hours),
            "unknown": {
                "n": self.unknown(lambda row: row.n),
                "passes": self.unknown(lambda row: row.passes),
                "flops": self.unknown(lambda row: row.flops),
                "fetch": self.unknown(lambda row: row.fetch),
                "hours": self.unknown(lambda row: row.hours),
            },
            "notes": list(self.notes),
        }


def plan_benchmark(
    bench: Benchmark, options: BenchOptions = BenchOptions(), flops_per_second: float | None = None
) -> Plan:
    """Cost of the selected cells, at a stated throughput or else at the one measured on this machine."""
    data = look_up_data(bench.data)
    stated = Rate(flops_per_second, "stated") if flops_per_second else None
    measured = MeasuredRates(options.device)
    stored = StoredCells(options)
    fetched: set[str] = set()
    rows: list[CellCost] = []
    for cell in cells(bench, options.only, options.skip):
        if not cell.runnable:
            rows.append(CellCost(cell, _images(cell, data)))
            continue
        known = not options.fresh and stored.folder(stored.fingerprint(cell)) is not None
        missing = set() if known else needed_models(cell) - fetched
        fetched |= missing
        rate = stated or measured.of(cell.model, cell.settings.threads)
        rows.append(_cost(cell, data, rate, [to_fetch(model) for model in missing], stored=known))
    return Plan(bench, tuple(rows), tuple(_notes(data)))


def _cost(cell: Cell, data: UnopenedData, rate: Rate | None, sizes: Sequence[int | None], *, stored: bool) -> CellCost:
    """Cost of a cell; `sizes` are the bytes of each of the models that are fetched for it."""
    entry = entry_of(cell)
    n = _images(cell, data)
    classes = data.classes or cell.options.get("num_classes") or (entry.num_classes if entry else DEFAULT_CLASSES)
    spent = price_of(cell.attack, cell.threat, classes)
    sized = sized_model(cell)
    figures = sized.figures if sized else None
    flops = least_flops = None
    if spent and figures and n is not None:
        per_image: float | None = _flops(spent.victim, figures)
        for source, passes in spent.sources:
            source_entry = zoo_entries().get(source)
            source_figures = figures_of(source_entry) if source_entry else None
            if per_image is not None:
                per_image = per_image + _flops(passes, source_figures) if source_figures else None
        flops = None if per_image is None else n * per_image
        if cell.published is not None and per_image is not None:
            survivors = cell.published.value / 100
            least_flops = n * (figures.flops * (1 - survivors) + per_image * survivors)
    return CellCost(
        cell,
        n,
        passes=spent.victim if spent else None,
        flops=flops,
        least_flops=least_flops,
        fetch=None if None in sizes else sum(size or 0 for size in sizes),
        rate=rate,
        stored=stored,
    )


@cache
def price_of(attack: str, threat: str, classes: int) -> Price | None:
    """Passes for an image that an attack does not fool; None where nobody knows, or where it cannot be built here."""
    from vitattack.attacks import attack_text

    against = parse_threat(threat)
    try:
        built = attack_text.build(attack, against)
    except UsageError:  # the checks before a run say why
        return None
    return of_one_image(built, PriceQuery(classes, against))


def _images(cell: Cell, data: UnopenedData) -> int | None:
    limit = cell.settings.limit
    selected = data if limit is None else look_up_data(cell.data, limit)
    return selected.n if selected.n is not None else selected.most


def _flops(passes: PassesPerImage, figures: ModelFigures) -> float:
    return passes.forwards * figures.flops + passes.backwards * figures.backward


def needed_models(cell: Cell) -> set[str]:
    """Models whose weights a cell needs: the victim, and the source models of transfer attacks."""
    spent = price_of(cell.attack, cell.threat, DEFAULT_CLASSES)
    return {cell.model, *(source for source, _ in spent.sources)} if spent else {cell.model}


def to_fetch(model: str) -> int | None:
    """Bytes of a model's weights that are not on this machine; None if their size is unknown."""
    entry = zoo_entries().get(model)
    if entry is None:
        return 0 if names_a_file(model) else None
    if weights_location(entry.weights, entry.id) != "not cached":
        return 0
    if entry.weights is not None and entry.weights.size is not None:
        return entry.weights.size
    figures = figures_of(entry)
    return 4 * figures.parameters if figures else None


def _notes(data: UnopenedData) -> list[str]:
    entry = data.entry
    if entry is None or entry.origin.startswith("shipped"):
        return []
    return [f"images of {data.name}: {entry.origin}, or --data-dir"]
