"""What a benchmark would take: passes, FLOPs, bytes to fetch, hours. Runs nothing and imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from vitattack.bench.cells import Cell, cells
from vitattack.bench.plan import facts
from vitattack.bench.plan.prices import Passes, price
from vitattack.bench.plan.throughput import Rate, Rates
from vitattack.bench.read.rows import Rows, rows
from vitattack.bench.run import stored_cells
from vitattack.bench.schema import Bench
from vitattack.core.words import names_a_file
from vitattack.models.weights.cache import whereabouts
from vitattack.models.zoo.entries import Entry, entries

MANY_CLASSES = 1000  # where neither model nor data say how many there are


@dataclass(frozen=True)
class Priced:
    """One cell with its price; None is what nobody recorded."""

    cell: Cell
    n: int | None  # images, at most
    passes: Passes | None  # of one image that nothing fools, through the victim
    flops: float | None  # of the whole cell if nothing fools any image
    least: float | None  # the same if the published number holds and fooled images cost nothing
    fetch: int | None  # bytes of weights that are not here, with the first cell that runs a model
    rate: Rate | None
    stored: bool

    @property
    def hours(self) -> float | None:
        return self.flops / self.rate.flops_per_second / 3600 if self.flops is not None and self.rate else None

    @property
    def least_hours(self) -> float | None:
        return self.least / self.rate.flops_per_second / 3600 if self.least is not None and self.rate else None

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
            "least_flops": self.least,
            "fetch": self.fetch,
            "hours": self.hours,
            "least_hours": self.least_hours,
            "rate": self.rate.json() if self.rate else None,
        }


@dataclass(frozen=True)
class Plan:
    """Every chosen cell of a benchmark with its price."""

    bench: Bench
    rows: tuple[Priced, ...]
    notes: tuple[str, ...] = ()

    @cached_property
    def to_run(self) -> tuple[Priced, ...]:
        return tuple(row for row in self.rows if row.to_run)

    def total(self, key: str) -> float | None:
        """Over what is to run and whose figure is known; None where none is."""
        known = [value for row in self.to_run if (value := getattr(row, key)) is not None]
        return sum(known) if known else None

    def unknown(self, key: str) -> int:
        """How many of the cells to run have no such figure."""
        return sum(getattr(row, key) is None for row in self.to_run)

    def json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "file": self.bench.path,
            "title": self.bench.title,
            "cells": [row.json() for row in self.rows],
            "to_run": len(self.to_run),
            **{key: self.total(key) for key in ("flops", "least", "fetch", "hours", "least_hours")},
            "unknown": {key: self.unknown(key) for key in ("n", "passes", "flops", "fetch", "hours")},
            "notes": list(self.notes),
        }


def plan(
    bench: Bench,
    *,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    throughput: float | None = None,
    store: Path | None = None,
    data_dir: str | None = None,
    device: str = "auto",
    fresh: bool = False,
) -> Plan:
    """The price of every cell; `throughput` in FLOPs per second, else what was measured on this machine.

    With `fresh` nothing counts as stored.
    """
    chosen = cells(bench, only, skip)
    images = rows(bench.data)
    rates, notes = Rates(device), stored_cells.Index(store) if store and not fresh else None
    fetched: set[str] = set()
    found = []
    for cell in chosen:
        stored = bool(notes and cell.runnable and notes.find(stored_cells.fingerprint(cell, data_dir, device)))
        found.append(_priced(cell, images, Rate.stated(throughput) if throughput else rates, stored, fetched))
    return Plan(bench, tuple(found), tuple(_notes(bench, images)))


def _priced(cell: Cell, images: Rows, rates: Rates | Rate, stored: bool, fetched: set[str]) -> Priced:
    entry = entry_of(cell)
    sized = rows(cell.data, cell.settings.limit) if cell.settings.limit is not None else images
    n = sized.n if sized.n is not None else sized.most
    classes = images.classes or cell.options.get("num_classes") or (entry.num_classes if entry else MANY_CLASSES)
    if not cell.runnable:
        return Priced(cell, n, None, None, None, None, None, stored)
    cost = price(cell.attack, classes=classes, threat=cell.threat)
    figures = facts.figures(entry) if entry else None
    flops = least = None
    if cost and figures and n is not None:
        each: float | None = _flops(cost.victim, figures)
        for source, passes in cost.sources:
            known = entries().get(source)
            other = facts.figures(known) if known else None
            each = each + _flops(passes, other) if other and each is not None else None
        flops = None if each is None else n * each
        if cell.published is not None and each is not None:
            survivors = cell.published.value / 100
            least = n * (figures.flops * (1 - survivors) + each * survivors)
    rate = rates if isinstance(rates, Rate) else rates.of(cell.model, cell.settings.threads)
    names = needed(cell)
    sizes = [] if stored else [to_fetch(name) for name in names - fetched]
    fetch = None if None in sizes else sum(size or 0 for size in sizes)
    if not stored:
        fetched.update(names)
    return Priced(cell, n, cost.victim if cost else None, flops, least, fetch, rate, stored)


def _flops(passes: Passes, figures: facts.Figures) -> float:
    return passes.forwards * figures.flops + passes.backwards * figures.backward


def entry_of(cell: Cell) -> Entry | None:
    """The zoo entry that says what a model is like, for a file the one it is read like or has the architecture of."""
    known = entries()
    if cell.model in known:
        return known[cell.model]
    if "like" in cell.options:
        return known.get(str(cell.options["like"]))
    arch = _built(cell.options.get("arch"), cell.options.get("arch_kwargs", {}))
    return next((one for one in known.values() if arch[0] and _built(one.arch, one.arch_kwargs) == arch), None)


def _built(arch: Any, arch_kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """What decides the size of a model; a head of other classes hardly does."""
    return arch, {key: value for key, value in arch_kwargs.items() if key != "num_classes"}


def needed(cell: Cell) -> set[str]:
    """The models whose weights a cell needs: its own, and those that candidates are crafted on."""
    cost = price(cell.attack, classes=MANY_CLASSES, threat=cell.threat)
    return {cell.model, *(source for source, _ in cost.sources)} if cost else {cell.model}


def to_fetch(model: str) -> int | None:
    """Bytes of the weights of a model that are not on this machine; None where nobody says how many."""
    entry = entries().get(model)
    if entry is None:
        return 0 if names_a_file(model) else None
    if whereabouts(entry.weights, entry.id) != "not cached":
        return 0
    if entry.weights is not None and entry.weights.size is not None:
        return entry.weights.size
    figures = facts.figures(entry)
    return 4 * figures.parameters if figures else None


def _notes(bench: Bench, images: Rows) -> list[str]:
    known = facts.data_sets().get(images.name.partition("/")[0])
    if known is None or known.origin.startswith("shipped"):
        return []
    return [f"images of {images.name}: {known.origin}, or --data-dir"]
