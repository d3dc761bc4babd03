"""What is looked at before the first forward of a run: attacks are built, data opened, weights and room on disk checked."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from vitattack.bench.cells import Cell
from vitattack.bench.plan.plan import needed, to_fetch
from vitattack.bench.read.rows import PATHS
from vitattack.bench.schema import Bench
from vitattack.core import files
from vitattack.core.assets import EMBEDDED
from vitattack.core.errors import UsageError, WrongThreat
from vitattack.models.weights import cache
from vitattack.models.zoo.entries import Entry, entries, weights_to_fetch

# What is fetched lies there twice for a moment: as it came, and converted.
TWICE = 2


def check(bench: Bench, cells: Sequence[Cell], *, store: Path, data_dir: str | None = None) -> None:
    """Refuses a run that would end badly; `cells` are those that are to be run."""
    lines = {m.label: m.line for m in bench.models} | {a.label: a.line for a in bench.attacks}

    def at(label: str, error: UsageError) -> UsageError:
        return UsageError(f"{bench.path}:{lines.get(label, 1)}: {error}")

    for cell in {(c.attack, c.threat): c for c in cells}.values():
        try:
            build(cell.attack, cell.threat)
        except UsageError as error:
            raise at(cell.attack_label, error) from error
    for model, cell in {m: c for c in cells for m in sorted(needed(c))}.items():
        try:
            check_weights(model, cell.label if model == cell.model else cell.attack_label)
        except UsageError as error:
            raise at(cell.label if model == cell.model else cell.attack_label, error) from error
    check_room(cells, store)
    check_data(bench, cells, data_dir)


def build(attack: str, threat: str) -> None:
    """An attack whose options do not suit each other says so."""
    from vitattack.attacks import attack_text
    from vitattack.threats.base import parse_threat

    try:
        attack_text.build(attack, parse_threat(threat))
    except WrongThreat as error:
        raise UsageError(f"{str(error).partition(': ')[0]}: skip this cell") from error


def check_weights(model: str, label: str) -> None:
    """Weights that are here hash to what they should; those that are not may be fetched. `label` stands for their cells."""
    entry = entries().get(model)
    if entry is None:
        return
    weights = weights_to_fetch(entry)
    where = cache.whereabouts(weights, entry.id)
    if where == "embedded":
        assert weights.file is not None
        cache.verify(EMBEDDED / weights.file, weights, entry.id)
        return
    changed = where == "cached" and cache.seems_there(entry.id) and cache.converted(weights, entry.id) is None
    if changed or where == "not cached":
        _must_fetch(entry, label)


def _must_fetch(entry: Entry, label: str) -> None:
    forbidden = files.offline_variable()
    if forbidden:
        raise UsageError(
            f"the weights of '{entry.id}' are not here and {forbidden} is set: fetch them with "
            f"vitattack models pull {entry.id}, or leave it out with --skip {shlex.quote(label)}"
        )


def check_room(cells: Iterable[Cell], store: Path) -> None:
    """Room for what is to be fetched, and for a record of every sample."""
    wanted = TWICE * sum(to_fetch(model) or 0 for model in {name for cell in cells for name in needed(cell)})
    _room(files.cache_home(), wanted, "the weights", "set VITATTACK_HOME to a larger disk")
    _room(store, 10_000_000, "the records", "give another --out")


def _room(folder: Path, wanted: int, what: str, fix: str) -> None:
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    try:
        free = shutil.disk_usage(there).free
    except OSError:  # a file system that does not say
        return
    if wanted > free:
        raise UsageError(
            f"{what} need {wanted / 1e9:.1f} GB in '{folder}', which has {free / 1e9:.1f} GB left: make room, or {fix}"
        )


def check_data(bench: Bench, cells: Sequence[Cell], data_dir: str | None) -> None:
    """The images are there and hold the rows that are asked for; those of the hub are fetched now."""
    from vitattack import data

    folder = Path(data_dir) if data_dir else None
    wanted = {(c.data, c.settings.limit, c.settings.transform): c for c in cells}
    for (text, limit, transform), cell in wanted.items():
        entry = entries().get(cell.model)
        try:
            data.load(text, limit=limit, data_dir=folder, transform=transform, px=entry.input if entry else 224)
        except UsageError as error:
            kind = text.partition(":")[0]
            raise UsageError(f"{bench.path}: {error}" if kind not in PATHS else str(error)) from error
