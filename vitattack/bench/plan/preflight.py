"""Checks before the first forward of a run: attacks are built, data opened, weights and disk space checked."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from vitattack.bench.cells import Cell
from vitattack.bench.options import BenchOptions
from vitattack.bench.plan.cost import needed_models, to_fetch
from vitattack.bench.schema import Benchmark
from vitattack.core import files
from vitattack.core.assets import EMBEDDED
from vitattack.core.errors import UsageError, WrongThreat
from vitattack.core.words import printable
from vitattack.data.request import PATH_KINDS
from vitattack.models.weights import cache
from vitattack.models.zoo.catalogue import zoo_entries
from vitattack.models.zoo.entry import ZooEntry, weights_to_fetch
from vitattack.models.zoo.names import runs_code

COPIES = 2  # of fetched weights on disk for a moment: as downloaded, and converted
RECORDS_BYTES = 10_000_000


def check_run(bench: Benchmark, cells: Sequence[Cell], options: BenchOptions) -> None:
    """Refuse a run of these cells that could not succeed."""
    lines = {named.label: named.line for named in (*bench.models, *bench.attacks)}

    def at(label: str, error: UsageError) -> UsageError:
        return UsageError(f"{bench.path}:{lines.get(label, 1)}: {error}")

    distinct_attacks = {(cell.attack, cell.threat): cell for cell in cells}
    for cell in distinct_attacks.values():
        try:
            check_attack(cell.attack, cell.threat)
        except UsageError as error:
            raise at(cell.attack_label, error) from error
    needed_by = {model: cell for cell in cells for model in sorted(needed_models(cell))}
    for model, cell in needed_by.items():
        label = cell.label if model == cell.model else cell.attack_label
        try:
            check_weights(model, label)
            if model == cell.model and runs_code(model, cell.options) and not options.unsafe_code:
                raise UsageError(f"'{printable(model, 60)}' runs code: add --unsafe-code if you trust whoever wrote it")
        except UsageError as error:
            raise at(label, error) from error
    check_disk(cells, options.store)
    check_data(bench, cells, options.data_dir)


def check_attack(attack: str, threat: str) -> None:
    """Build an attack, which refuses options that do not go together."""
    from vitattack.attacks import attack_text
    from vitattack.threats.base import parse_threat

    try:
        attack_text.build(attack, parse_threat(threat))
    except WrongThreat as error:
        raise UsageError(f"{str(error).partition(': ')[0]}: skip this cell") from error


def check_weights(model: str, label: str) -> None:
    """Refuse weights with a wrong hash, and missing ones that may not be fetched; `label` is what --skip would name."""
    entry = zoo_entries().get(model)
    if entry is None:
        return
    weights = weights_to_fetch(entry)
    where = cache.weights_location(weights, entry.id)
    if where == "embedded":
        assert weights.file is not None
        cache.verify_file(EMBEDDED / weights.file, weights, entry.id)
        return
    changed = where == "cached" and cache.seems_cached(entry.id) and cache.cached_weights(weights, entry.id) is None
    if changed or where == "not cached":
        _check_online(entry, label)


def _check_online(entry: ZooEntry, label: str) -> None:
    forbidden = files.offline_variable()
    if forbidden:
        raise UsageError(
            f"the weights of '{entry.id}' are not here and {forbidden} is set: fetch them with "
            f"vitattack models pull {entry.id}, or leave it out with --skip {shlex.quote(label)}"
        )


def check_disk(cells: Iterable[Cell], store: Path) -> None:
    """Refuse a run without space for its weights and records."""
    models = {model for cell in cells for model in needed_models(cell)}
    weights = COPIES * sum(to_fetch(model) or 0 for model in models)
    _check_space(files.cache_home(), weights, "the weights", "set VITATTACK_HOME to a larger disk")
    _check_space(store, RECORDS_BYTES, "the records", "give another --out")


def _check_space(folder: Path, needed: int, what: str, fix: str) -> None:
    existing = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    try:
        free = shutil.disk_usage(existing).free
    except OSError:  # not every file system tells
        return
    if needed > free:
        raise UsageError(
            f"{what} need {needed / 1e9:.1f} GB in '{folder}', which has {free / 1e9:.1f} GB left: make room, or {fix}"
        )


def check_data(bench: Benchmark, cells: Sequence[Cell], data_dir: str | None) -> None:
    """Open all data sets, which refuses missing files and rows; data sets of the hub are fetched here."""
    from vitattack import data

    folder = Path(data_dir) if data_dir else None
    distinct = {(cell.data, cell.settings.limit, cell.settings.transform): cell for cell in cells}
    for (text, limit, transform), cell in distinct.items():
        entry = zoo_entries().get(cell.model)
        try:
            data.load_data(text, limit=limit, data_dir=folder, transform=transform, px=entry.input if entry else 224)
        except UsageError as error:
            kind = text.partition(":")[0]
            raise UsageError(f"{bench.path}: {error}" if kind not in PATH_KINDS else str(error)) from error
