"""Finished analyses of a store, found by the words of a command without torch, as long as their input files are unchanged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from vitattack.analyses.findings import Findings, restored
from vitattack.analyses.parts import FOLDER
from vitattack.core.errors import VitattackError
from vitattack.core.file_hashes import remembered_sha256, still_fit
from vitattack.core.files import write_atomically
from vitattack.records.run_index import surroundings
from vitattack.records.sealed import load_intact, sealed_text


class FinishedAnalyses:
    """What commands found in a store; `request` holds the words of one, as plain data."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def find(self, request: Mapping[str, Any]) -> Findings | None:
        """The findings of a request, if none of the files they were computed from has changed."""
        try:
            entry = load_intact(self._place(request))
            if entry is None or any(_state(path) != was for path, was in entry["files"].items()):
                return None
            return restored(entry["findings"])
        except (KeyError, TypeError, ValueError, AttributeError, OSError):  # a damaged entry
            return None

    def note(self, request: Mapping[str, Any], findings: Findings) -> None:
        """Keep the findings of a request, unless a file they were computed from cannot be listed or has just changed."""
        if findings.inputs is None or not still_fit(findings.inputs):
            return
        files = {str(path): _state(path) for path in findings.inputs}
        place = self._place(request)
        with suppress(OSError, VitattackError):  # without a writable store only time is lost
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(place, sealed_text({"files": files, "findings": findings.stored()}))

    def _place(self, request: Mapping[str, Any]) -> Path:
        content = {"request": dict(request), "around": surroundings()}
        key = hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()
        return self._root / FOLDER / f"found-{key[:32]}.json"


def _state(path: str | Path) -> str | None:
    """The hash of a file's content; None if the file is missing."""
    try:
        return remembered_sha256(Path(path))
    except FileNotFoundError:
        return None
