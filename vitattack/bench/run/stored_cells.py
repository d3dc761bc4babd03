"""Which finished job a cell is, known without opening its model: a note beside the jobs, and when it may be believed.

A job's key holds the digests of weights and pixels, which only who has loaded them knows. The note maps a fingerprint of
what the texts of a cell stand for now to the folder its job had. What has no fingerprint is opened and looked up by key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import cache as remembered
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vitattack.bench.cells import Cell
from vitattack.core import files
from vitattack.core.assets import EMBEDDED
from vitattack.core.errors import UsageError
from vitattack.core.files import read_json
from vitattack.models.weights import cache
from vitattack.models.zoo.entries import entries
from vitattack.records.record import SampleRecord
from vitattack.records.stats import Accuracy

NOTES = "cells.jsonl"
FILES = ("folder:", "npz:", "file:", "imagenet-classes:")  # texts whose files may change under them

SHARE = {*Accuracy._fields} - {"n"}


def fingerprint(cell: Cell, data_dir: str | None, device: str) -> str | None:
    """What a cell is, down to the hash of its weights; None where a file or a repository could change under its text."""
    settings = cell.settings
    texts = (cell.data, settings.calibration or "")
    if any(each in text for each in FILES for text in texts) or '"' in cell.attack or "'" in cell.attack:
        return None
    weights = _weights(cell.model)
    if weights is None:
        return None
    content = {
        "version": version("vitattack"),
        "model": [cell.model, weights, dict(cell.options)],
        "attack": [cell.attack, cell.threat, cell.seed],
        "data": [cell.data, data_dir and str(Path(data_dir).absolute())],
        "settings": asdict(settings),
        "device": device,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def _weights(model: str) -> str | None:
    """What the weights of a model are, as far as that is known without reading them."""
    entry = entries().get(model)
    if entry is None:
        with suppress(OSError):
            found = Path(model).stat()
            return f"{found.st_size} {found.st_mtime_ns}"
        return None
    if entry.weights is None:
        return None
    sha256 = entry.weights.sha256
    if sha256 is None and entry.weights.file is not None:
        sha256 = _embedded(entry.weights.file)
    if sha256 is None and (pinned := cache.pins().get(model)):
        sha256 = pinned.sha256
    return sha256 and f"{sha256} {asdict(entry)}"


@remembered
def _embedded(file: str) -> str:
    """Only what comes with the package may be remembered: other files change while a session of Python lives."""
    return files.file_sha256(EMBEDDED / file)


class Index:
    """The notes of a store."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._notes: dict[str, str] = {}
        with suppress(OSError):
            for line in (root / NOTES).read_bytes().splitlines():
                with suppress(ValueError, KeyError, TypeError, RecursionError):  # the last line may be torn
                    content = json.loads(line)
                    self._notes[content["cell"]] = str(content["folder"])

    def find(self, mark: str | None) -> Path | None:
        """The folder of a fingerprint's job, if its result is whole."""
        name = self._notes.get(mark) if mark else None
        if not name or name != Path(name).name or result_in(self._root / name) is None:
            return None
        return self._root / name

    def note(self, mark: str | None, folder: str) -> None:
        """This cell is that job."""
        if mark is None or self._notes.get(mark) == folder:
            return
        self._notes[mark] = folder
        try:
            files.append_line(self._root / NOTES, json.dumps({"cell": mark, "folder": folder}))
        except OSError as error:
            raise UsageError(f"cannot write {self._root / NOTES} ({error.strerror}): give another --out") from error


def result_in(folder: Path) -> dict[str, Any] | None:
    """The result.json of a finished job, if its records are all there."""
    content = read_json(folder / "result.json")
    if not content or not {"n", "clean", "robust", "job", "provenance"} <= content.keys():
        return None
    if any(not isinstance(content[name], dict) or content[name].keys() != SHARE for name in ("clean", "robust")):
        return None
    with suppress(OSError):
        if (folder / "samples.jsonl").read_bytes().count(b"\n") == content.get("lines", content["n"]):
            return content
    return None


def records(folder: Path) -> Iterator[SampleRecord]:
    """The records of a finished job, one after the other; of a sample that was looked at again, the last."""
    with (folder / "samples.jsonl").open("rb") as stream:
        found = {record.index: record for record in map(SampleRecord.parse, stream)}
    yield from found.values()
