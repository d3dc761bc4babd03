"""Index of a store: finds the finished jobs of a command without torch.

A command is identified by its texts and by everything around them that a job's key depends on. An entry lists the folders
of its jobs and the files it reads, each with the hash of its content. If anything has changed, nothing is found, and the
caller computes the evaluation, which notes it again.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import vitattack
from vitattack.core.errors import VitattackError
from vitattack.core.file_hashes import Marks, remembered_sha256, still_fit
from vitattack.core.files import cache_home, no_pipe, write_atomically
from vitattack.core.versions import COMPUTING, package_version
from vitattack.records.job import Job
from vitattack.records.result import Evaluation
from vitattack.records.sealed import load_intact, sealed_text
from vitattack.records.stored_result import read_result

FOLDER = ".index"
# Variables that decide which device `auto` is and where models, data and weights are looked for.
VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HF_ENDPOINT",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "TORCH_HOME",
    "XDG_CACHE_HOME",
    "HOME",
)
SPENT = ("out", "fresh", "shard")  # settings that say where results are stored, not what they are


@dataclass(frozen=True)
class Finding:
    """A finished evaluation, with remarks that its records alone do not contain."""

    evaluation: Evaluation
    remarks: tuple[str, ...] = ()


class RunIndex:
    """The index of one store; `request` holds the texts of a command, as plain data."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def find(self, request: Mapping[str, Any]) -> Finding | None:
        """The finished evaluation of a request, if none of its input files and records has changed."""
        try:
            entry = load_intact(self._place(request))
            if entry is None or not entry["jobs"] or any(_state(path) != was for path, was in entry["files"].items()):
                return None
            results = [read_result(self._root, folder) for folder in entry["jobs"]]
            evaluation = Evaluation(tuple(result for result in results if result is not None))
            if len(evaluation.results) < len(results):
                return None
            return Finding(evaluation, tuple(map(str, entry["remarks"])))
        except (KeyError, TypeError, ValueError, AttributeError, OSError, OverflowError):  # a damaged entry
            return None

    def note(
        self,
        request: Mapping[str, Any],
        jobs: Iterable[Job],
        files: Marks,
        remarks: Iterable[str] = (),
    ) -> None:
        """Remember the jobs of a request and the files it reads, marked before the run, unless one has changed since.

        A missing file invalidates the entry once it appears.
        """
        entry = {
            "jobs": [job.folder for job in jobs],
            "files": {str(path): _state(path) for path in files},
            "remarks": list(remarks),
        }
        if not still_fit(files):  # the run may have read other content than is there now
            return
        with suppress(OSError, VitattackError):  # without a writable store only time is lost
            place = self._place(request)
            if place.exists() and no_pipe(place).read_bytes() == sealed_text(entry).encode():
                return
            place.parent.mkdir(exist_ok=True)
            write_atomically(place, sealed_text(entry))

    def _place(self, request: Mapping[str, Any]) -> Path:
        content = {"request": {k: v for k, v in request.items() if k not in SPENT}, "around": surroundings()}
        key = hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()
        return self._root / FOLDER / f"{key[:32]}.json"


def _state(path: str | Path) -> str | None:
    """The hash of a file's content; None if the file is missing."""
    try:
        return remembered_sha256(Path(path))
    except FileNotFoundError:
        return None


def surroundings() -> dict[str, Any]:
    """Everything besides its words that a command depends on: code, machine, search paths."""
    return {
        "versions": [package_version(name) for name in ("vitattack", *COMPUTING)],
        "code": code_state(),
        "folder": str(Path.cwd()),
        "cache": str(cache_home()),
        "machine": [platform.node(), platform.machine(), *sorted(map(str, Path("/dev").glob("nvidia*")))],
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


@cache
def code_state() -> str:
    """A hash over size and modification time of every module of the package, since other code may mean other attacks."""
    hasher = hashlib.sha256()
    command_line = find_spec("vitattack.cli")  # beside the package in a checkout
    roots = [*vitattack.__path__, *((command_line and command_line.submodule_search_locations) or ())]
    for folder, folders, names in (entry for root in roots for entry in os.walk(root)):
        folders[:] = sorted(name for name in folders if name not in ("__pycache__", "assets"))
        for name in sorted(names):
            if name.endswith(".py"):
                status = Path(folder, name).stat()
                hasher.update(f"{folder}/{name}|{status.st_size}|{status.st_mtime_ns}\n".encode())
    return hasher.hexdigest()
