"""Index of the cells whose jobs are finished, consulted without opening a model.

A job's key holds digests of weights and pixels, which are known only once both are loaded. The index maps a fingerprint of
what the texts of a cell stand for at present to the folder of its job. A cell without fingerprint is opened and looked up
by key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache as memoised
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vitattack.bench.cells import Cell
from vitattack.bench.options import BenchOptions
from vitattack.core.assets import EMBEDDED
from vitattack.core.errors import UsageError
from vitattack.core.file_hashes import remembered_sha256, state_digest
from vitattack.core.files import append_line, file_sha256, no_pipe
from vitattack.core.versions import other_versions
from vitattack.data.request import read_request
from vitattack.models.weights import cache
from vitattack.models.zoo.catalogue import zoo_entries
from vitattack.models.zoo.names import runs_code
from vitattack.records.job import RECORDS
from vitattack.records.run_index import code_state
from vitattack.records.sealed import Damaged, opened_line, sealed_line
from vitattack.records.stats import Accuracy
from vitattack.records.stored_result import read_result, result_content

INDEX = "cells.jsonl"
PATHS = ("folder:", "npz:", "file:", "imagenet-classes:")  # data texts with files that may change

ACCURACY_KEYS = {*Accuracy._fields} - {"n"}


DataStates = dict[tuple[str, str | None], str | None]  # by data text and data folder


def fingerprint(cell: Cell, data_dir: str | None, device: str, states: DataStates | None = None) -> str | None:
    """Identity of a cell down to its weights and data files; None if something could change unseen under its text.

    `states` remembers those of the data files from cell to cell.
    """
    settings = cell.settings
    texts = (cell.data, settings.calibration or "")
    if any(path in text for path in PATHS for text in texts) or '"' in cell.attack or "'" in cell.attack:
        return None
    if runs_code(cell.model, cell.options):  # which may lie in any file
        return None
    weights = _weights(cell.model)
    known = {} if states is None else states
    files = [_data_state(text, data_dir, known) for text in texts if text]
    if weights is None or None in files:
        return None
    content = {
        "version": [version("vitattack"), RECORDS, code_state()],
        "model": [cell.model, weights, dict(cell.options)],
        "attack": [cell.attack, cell.threat, cell.seed],
        "data": [cell.data, data_dir and str(Path(data_dir).absolute()), *files],
        "settings": asdict(settings),
        "device": device,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def _data_state(text: str, data_dir: str | None, known: DataStates) -> str | None:
    """Identity of the files that a data text stands for, if they are here and it is known which they are."""
    if (text, data_dir) not in known:
        paths: Sequence[Path] | None = None
        with suppress(UsageError, OSError):  # which the run will report
            request = read_request(text)
            if request.entry is not None:
                paths = request.entry.content_paths(Path(data_dir) if data_dir else None, request.part)
        known[text, data_dir] = None if paths is None else state_digest(paths)
    return known[text, data_dir]


def _weights(model: str) -> str | None:
    """Identity of a model's weights, if it is known without reading them."""
    entry = zoo_entries().get(model)
    if entry is None:
        with suppress(OSError):
            return remembered_sha256(Path(model))
        return None
    if entry.weights is None:
        return None
    sha256 = entry.weights.sha256
    if sha256 is None and entry.weights.file is not None:
        sha256 = _embedded_sha256(entry.weights.file)
    if sha256 is None and (pinned := cache.read_pins().get(model)):
        sha256 = pinned.sha256
    return sha256 and f"{sha256} {asdict(entry)}"


@memoised
def _embedded_sha256(file: str) -> str:
    """Hash of a file of the package, the only files that do not change while a process lives."""
    return file_sha256(EMBEDDED / file)


class StoredCells:
    """The index of one store, read once."""

    def __init__(self, options: BenchOptions) -> None:
        self._options = options
        self._path = options.store / INDEX
        self._folders: dict[str, str] = {}
        self._states: DataStates = {}
        with suppress(OSError):
            for line in no_pipe(self._path).read_bytes().splitlines():
                with suppress(Damaged, KeyError):  # the last line may be torn
                    content = opened_line(line)
                    self._folders[content["cell"]] = str(content["folder"])

    def fingerprint(self, cell: Cell) -> str | None:
        """Fingerprint of a cell that is run with the options of this run."""
        return fingerprint(cell, self._options.data_dir, self._options.device, self._states)

    def folder(self, mark: str | None) -> Path | None:
        """Folder of the job with a fingerprint, if the index has it and its result is whole."""
        name = self._folders.get(mark) if mark else None
        if not name or name != Path(name).name or result_in(self._options.store / name) is None:
            return None
        return self._options.store / name

    def note(self, cell: Cell, mark: str | None, folder: str) -> None:
        """Add a finished job by the fingerprint that its cell had before the run, and still has."""
        if mark is None or self._folders.get(mark) == folder:
            return
        if fingerprint(cell, self._options.data_dir, self._options.device) != mark:  # which files were read?
            return
        self._folders[mark] = folder
        try:
            append_line(self._path, sealed_line({"cell": mark, "folder": folder}).decode().rstrip("\n"))
        except OSError as error:
            raise UsageError(f"cannot write {self._path} ({error.strerror}): give another --out") from error


def result_in(folder: Path) -> dict[str, Any] | None:
    """The result.json of a finished job, if its records are complete."""
    content = result_content(folder)
    if not content or not {"n", "clean", "robust", "job", "provenance"} <= content.keys():
        return None
    if any(
        not isinstance(content[name], dict) or content[name].keys() != ACCURACY_KEYS for name in ("clean", "robust")
    ):
        return None
    if content["schema"] == 1 and read_result(folder.parent, folder.name) is None:  # only its records confirm it
        return None
    return {**content, "doubts": [*content.get("doubts", ()), *other_versions(content["provenance"])]}
